"""Plain structures and constants of gymapi; fields that the original lacks cannot be set."""


# ruff: noqa: RUF012


class Struct:
    """Fields with defaults; as in the bindings, a whole number does not take a float."""

    FIELDS = {}

    def __init__(self):
        for name, value in self.FIELDS.items():
            object.__setattr__(self, name, value() if isinstance(value, type) else value)

    def __setattr__(self, name, value):
        if name not in self.FIELDS:
            raise AttributeError(f"{type(self).__name__} has no field '{name}'")
        old = getattr(self, name)
        if type(old) is int and type(value) is not int:
            raise TypeError(f"{type(self).__name__}.{name} takes an int")
        object.__setattr__(self, name, value)


class Vec3:
    def __init__(self, x=0.0, y=0.0, z=0.0):
        self.x, self.y, self.z = float(x), float(y), float(z)


class Quat:
    def __init__(self, x=0.0, y=0.0, z=0.0, w=1.0):
        self.x, self.y, self.z, self.w = float(x), float(y), float(z), float(w)


class Transform:
    def __init__(self, p=None, r=None):
        self.p, self.r = p or Vec3(), r or Quat()


class PhysXParams(Struct):
    FIELDS = {
        "solver_type": 1,
        "num_position_iterations": 4,
        "num_velocity_iterations": 1,
        "num_threads": 0,
        "num_subscenes": 0,
        "use_gpu": False,
        "contact_offset": 0.02,
        "rest_offset": 0.001,
        "bounce_threshold_velocity": 0.2,
        "max_depenetration_velocity": 100.0,
        "default_buffer_size_multiplier": 2.0,
        "max_gpu_contact_pairs": 1024 * 1024,
    }


class SimParams(Struct):
    FIELDS = {
        "dt": 1.0 / 60.0,
        "substeps": 2,
        "up_axis": "UP_AXIS_Y",
        "gravity": Vec3,
        "use_gpu_pipeline": False,
        "physx": PhysXParams,
    }


class AssetOptions(Struct):
    FIELDS = {
        "angular_damping": 0.5,
        "armature": 0.0,
        "collapse_fixed_joints": False,
        "default_dof_drive_mode": 0,
        "fix_base_link": False,
        "max_angular_velocity": 64.0,
        "max_linear_velocity": 1000.0,
    }


class TriangleMeshParams(Struct):
    FIELDS = {
        "nb_vertices": 0,
        "nb_triangles": 0,
        "static_friction": 1.0,
        "dynamic_friction": 1.0,
        "restitution": 0.0,
        "transform": Transform,
    }


class RigidShapeProperties(Struct):
    FIELDS = {"friction": 1.0, "restitution": 0.0, "filter": 0}


class RigidBodyProperties(Struct):
    FIELDS = {"com": Vec3, "mass": 0.0}


class Tensor:
    """Description of a tensor; ``array`` is the stand-in's own."""

    def __init__(self):
        self.array = None

    @property
    def shape(self):
        return self.array.shape


UP_AXIS_Y, UP_AXIS_Z = "UP_AXIS_Y", "UP_AXIS_Z"
SIM_FLEX, SIM_PHYSX = 0, 1
DOF_MODE_NONE, DOF_MODE_POS, DOF_MODE_VEL, DOF_MODE_EFFORT = 0, 1, 2, 3
