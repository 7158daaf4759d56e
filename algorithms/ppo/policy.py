"""The trained controller as one safe file, readable without Ray.

``policy.pt`` is a ``torch.save`` of tensors and one JSON string, loaded with ``weights_only``:
``{"format", "version", "meta", "tensors"}``. ``meta`` holds the :class:`NetSpec` and free notes;
``tensors`` the actor, the normaliser, ``log_std`` and, for warm starts, the critic.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.ppo.networks import Head, NetSpec, ObsNormaliser
from parc_ray.data.patience import write_whole
from parc_ray.errors import InputError

FORMAT = "parc-ray/tracker-policy"
VERSION = 1
_CRITIC = "critic."


class MlpPolicy(nn.Module):
    """Deterministic actor with its observation normaliser inside (a ``protocols.Policy``).

    Attributes:
        spec: shape of the networks.
        notes: free JSON-able facts stored with the file (iteration, samples, score, ...).
        critic_state: tensors of the critic that came with the file; not used to act.
    """

    def __init__(self, spec: NetSpec) -> None:
        """Create an untrained policy of shape ``spec``."""
        super().__init__()
        self.spec = spec
        self.notes: dict[str, Any] = {}
        self.critic_state: dict[str, Tensor] = {}
        dims = (spec.obs_dim, spec.normaliser_skip, spec.normaliser_clip)
        self.normaliser = ObsNormaliser(*dims)
        self.actor = Head(spec, spec.actor_dim, spec.action_dim)
        self.log_std = nn.Parameter(torch.zeros(spec.action_dim), requires_grad=False)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Mean actions (N, A) for observations (N, O); privileged numbers may be left out."""
        return self.actor(self.normaliser(obs[..., : self.spec.actor_dim]))

    @torch.no_grad()
    def sample(self, obs: Tensor, rng: torch.Generator) -> Tensor:
        """Exploring actions (N, A): mean plus the learnt deviation times normal noise."""
        mean = self.act(obs)
        noise = torch.randn(mean.shape, generator=rng, dtype=mean.dtype, device=mean.device)
        return mean + torch.exp(self.log_std) * noise

    @classmethod
    def from_state(cls, spec: NetSpec, state: Mapping[str, Tensor]) -> MlpPolicy:
        """Copy an actor-critic's tensors; those of the critic are kept for warm starts."""
        policy = cls(spec)
        state = {k: v.detach().cpu().clone() for k, v in state.items()}
        policy.load_state_dict({k: v for k, v in state.items() if not k.startswith(_CRITIC)})
        policy.critic_state = {
            k.removeprefix(_CRITIC): v for k, v in state.items() if k.startswith(_CRITIC)
        }
        return policy.eval()

    @property
    def digest(self) -> str:
        """SHA-256 of shape, actor, normaliser and deviation; equal for equal behaviour."""
        sha = hashlib.sha256(json.dumps(self.spec.to_dict(), sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return sha.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the file atomically (temporary name, then rename)."""
        tensors = {k: v.detach().cpu().clone() for k, v in self.state_dict().items()}
        tensors.update({f"{_CRITIC}{k}": v.detach().cpu() for k, v in self.critic_state.items()})
        meta = {"spec": self.spec.to_dict(), "notes": self.notes, "digest": self.digest}
        payload = {
            "format": FORMAT,
            "version": VERSION,
            "meta": json.dumps(meta, sort_keys=True),
            "tensors": tensors,
        }
        write_atomic(Path(path), payload)

    @classmethod
    def load(cls, path: str | Path) -> MlpPolicy:
        """Read a policy file.

        Raises:
            InputError: the file is missing, is no policy file, is newer than this program, or its
                tensors do not fit its own description.
        """
        payload = read_safe(Path(path), FORMAT, VERSION)
        try:
            meta = json.loads(payload["meta"])
            policy = cls.from_state(NetSpec.from_dict(meta["spec"]), payload["tensors"])
            policy.notes = dict(meta.get("notes", {}))
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise InputError(
                f"{path}: the policy file does not fit its own description ({error}); "
                "allowed are files written by MlpPolicy.save; train or export it again"
            ) from error
        return policy


def write_atomic(path: Path, payload: dict[str, Any]) -> None:
    """``torch.save`` to a temporary file beside ``path``, flushed, then renamed over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    write_whole(path, buffer.getbuffer())


def read_safe(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Load a file of tensors and plain values without running any code in it.

    Args:
        path: file written by :func:`write_atomic`.
        kind: expected value of its ``format`` entry.
        version: newest version this program reads.

    Raises:
        InputError: missing, not loadable safely, of another kind, or newer.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of a {kind} file")
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may fail in any way at all
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path}: cannot be read as plain tensors ({first}); allowed are {kind} files"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != kind:
        raise InputError(f"{path}: is not a {kind} file; give one written by this program")
    if not isinstance(payload.get("version"), int) or payload["version"] > version:
        raise InputError(
            f"{path}: version {payload.get('version')} is newer than {version}; update the program"
        )
    return payload
