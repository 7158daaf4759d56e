"""``parc import-model --kind tracker``: a published tracker becomes a policy file."""

from __future__ import annotations

from pathlib import Path

import torch

from algorithms.diffusion.checkpoint import read_tensors
from algorithms.diffusion.published import tensors_of
from algorithms.ppo.config import PRESETS
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.published import rename
from algorithms.ppo.sizes import treat_blocks
from envs.tracking.config import upstream
from envs.tracking.motion_bank import TerrainBank
from envs.tracking.observations import ObservationBuilder
from parc_ray.character.character import Character, load_character
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield


def published_spec(character: Character) -> NetSpec:
    """Networks of the published code for a character: sizes, activation, normalised parts."""
    bank = TerrainBank([Heightfield.flat((1, 1))])
    layout = ObservationBuilder(character, upstream().observation, bank).layout
    skip, _ = treat_blocks(layout.blocks)
    config = PRESETS["upstream"]().replace(normaliser_skip=skip)
    return NetSpec.from_config(config, layout.size, character.skeleton.num_dofs)


def import_tracker(source: Path, out: Path, character_name: str, names: dict[str, str]) -> str:
    """Read a published tracker and write a policy file; what to tell the user.

    Args:
        source: the published checkpoint.
        out: policy file to write.
        character_name: humanoid, or the path of an .xml.
        names: their tensor names by ours, where they are not recognised.

    Raises:
        InputError: the file is no published tracker of the character.
    """
    character = load_character(character_name)
    theirs = tensors_of(read_tensors(source, "published tracker"))
    policy = rename(theirs, published_spec(character), names)
    told = _actions(theirs, character)
    policy.notes = {"source": source.name, "character": character.name, "verified": False}
    policy.save(out)
    count = sum(p.numel() for p in policy.actor.parameters())
    count += sum(v.numel() for v in policy.critic_state.values())
    return f"{out}: {count} parameters of {source.name} for {character.name}{told}"


def _actions(theirs: dict[str, torch.Tensor], character: Character) -> str:
    """Whether the file's own action range, if it holds one, is ours.

    Raises:
        InputError: it is another one.
    """
    told = []
    for word, ours in (("mean", character.action_offset), ("std", character.action_scale)):
        names = [
            n
            for n, v in theirs.items()
            if v.shape == ours.shape
            and word in n.rsplit(".", 1)[-1].lower()
            and ("a_norm" in n or "action_norm" in n)
        ]
        for name in names:
            if not torch.allclose(theirs[name].float(), ours, atol=2e-3):
                raise InputError(
                    f"weights: {name} is another range of actions than {character.name}'s; "
                    "choose the character of the file."
                )
            told.append(name)
    return f"; its range of actions is ours ({', '.join(told)})" if told else ""
