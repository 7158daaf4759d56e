"""Where the workers of each stage go, and how much of a node each takes.

Nothing here touches results: one recipe runs on a laptop, on one GPU, or on forty, and only these
values differ (docs/scale.md has sets of them).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from parc_ray.errors import InputError

NODE_SHARE = 0.001
"""Of a node's custom resource that each worker takes: the resource says where, never how many."""


@dataclass(frozen=True, kw_only=True)
class PlaceConfig:
    """Demands of each worker of a kind of stage, where they differ from ``resources`` itself."""

    node: str = ""
    """Custom resource that its nodes offer (``ray start --resources '{"sim": 1}'``); empty: any."""
    cpus: float | None = None
    """Logical CPUs of each; None: ``resources.cpus_per_worker``."""
    gpus: float | None = None
    """GPUs of each, or a share; None: ``resources.gpus_per_worker`` where the stage uses a GPU."""
    most: int | None = None
    """Workers that a pool may grow to while work waits (with an autoscaler: on new nodes); None:
    as many as it starts with."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if set(self.node) & set(" :,{}'\""):
            raise InputError(
                f"resources.places.*.node: {self.node!r} is no name of a resource; allowed is a "
                "word such as sim; change it"
            )
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(
                    f"resources.places.*.{name}: {value!r} is out of range; allowed is 0 or more, "
                    "or None; change it"
                )
        if self.most is not None and self.most < 1:
            raise InputError(
                f"resources.places.*.most: {self.most!r} is out of range; allowed is 1 or more, "
                "or None; change it"
            )

    def custom(self) -> dict[str, float]:
        """The custom resource that each worker asks for; empty where any node will do."""
        return {self.node: NODE_SHARE} if self.node else {}


@dataclass(frozen=True, kw_only=True)
class PlacesConfig:
    """A place for each kind of work."""

    augment: PlaceConfig = field(default_factory=PlaceConfig)
    """Actors that vary the initial clips."""
    generator: PlaceConfig = field(default_factory=PlaceConfig)
    """Ray Train workers of the generator."""
    generate: PlaceConfig = field(default_factory=PlaceConfig)
    """Actors that plan, roll out and optimise motions."""
    tracker: PlaceConfig = field(default_factory=PlaceConfig)
    """Runners and learners of the tracker, or its one process in placement ``local``. CPUs and
    GPUs of the first are ``tracker.cpus_per_actor`` and ``tracker.gpus_per_*``."""
    record: PlaceConfig = field(default_factory=PlaceConfig)
    """Actors that correct motions in simulation."""
    evaluate: PlaceConfig = field(default_factory=PlaceConfig)
    """Actors that test generator and tracker."""

    def nodes(self) -> dict[str, str]:
        """Kind of work to the custom resource it asks for, where it asks for one."""
        named = {f.name: getattr(self, f.name).node for f in fields(self)}
        return {name: node for name, node in named.items() if node}
