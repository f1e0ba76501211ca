"""The Racecar: rear axle driven, front wheels steered together.

The original's chassis is a mesh that collides by its convex hull; here it is the box around it. The meshes that are
only looked at (gears of the two differentials) are left out, their masses are not.
"""

import mujoco

from riskppo_jax.envs.navigation.robots import HINGE, RED, Robot, add_agent, add_geom, add_joint, add_motor

_BLACK = (0.0, 0.0, 0.0, 1.0)
_STEER = 0.785
_DAMPING = 0.001
_WHEEL = (0.05, 0.0225)
_TURNED = (0.7071052811843601, 0.0, 0.707108281185553, 0.0)
_TILTED = (0.7071052811843601, 0.707108281185553, 0.0, 0.0)
_AXES = (0.5, 0.5, -0.5, 0.5)
_GEAR = (0.04411, 0.02467, 0.02467)


def _racecar(spec: mujoco.MjSpec):
    agent = add_agent(spec, 0.05, site=(0.02, 0.0, 0.0))
    agent.add_freejoint(name="agent")
    frame = agent.add_body(name="pos_change", pos=(-0.16, 0.0, 0.0))
    add_geom(frame, "bumper", "box", (0.0165, 0.0875, 0.015), (0.39, 0.0, 0.04), RED)
    chassis = frame.add_body(name="car_body")
    _weigh(chassis, 0.017605537618291808, (2.706324171671688e-4, 2.385001307776043e-4, 4.125453652032671e-5),
           (0.15557992747876107, -3.826658731145229e-4, 0.0),
           (0.001766899788279318, 0.7071045736417905, -0.001766899788279318, 0.7071045736417905))  # fmt: skip
    add_geom(chassis, "chassis", "box", (0.209615459, 0.101253087, 0.030000007), (0.15557992747876107, 0.0, 0.0))
    for side, y in (("left", 1.0), ("right", -1.0)):
        hinge = frame.add_body(name=f"{side}_steering_hinge", pos=(0.325, 0.1 * y, 0.0), quat=_TURNED)
        _weigh(hinge, 0.1, (4e-6, 4e-6, 4e-6))
        add_joint(hinge, f"{side}_steering", HINGE, (-1.0, 0.0, 0.0), _DAMPING, limited=True, range=(-_STEER, _STEER))
        wheel = hinge.add_body(name=f"{side}_front_wheel", quat=_TILTED)
        _weigh(wheel, 0.34055, (4.1226e-4, 2.6046e-4, 2.6046e-4), (0.0, 0.0, -0.0225 * y), _AXES)
        add_joint(wheel, f"{side}_front_wheel", HINGE, (0.0, 0.0, -1.0), _DAMPING)
        add_geom(wheel, f"{side}_front", "cylinder", _WHEEL, (0.0, 0.0, -0.0225 * y), _BLACK)
    ring = frame.add_body(name="diff_ring")
    _weigh(ring, 0.0637, _GEAR, iquat=_AXES)
    add_geom(ring, "diff_ring", "cylinder", (0.025, 0.005), (0.0, 0.025, 0.0), (0.0, 0.8, 0.0, 1.0), quat=_TILTED)
    _spiders(ring, "diff")
    axle = ring.add_body(name="axle")
    add_joint(axle, "axle", HINGE, (0.0, 1.0, 0.0), _DAMPING)
    for side, y in (("left", 1.0), ("right", -1.0)):
        half = axle.add_body(name=f"{side}_rear_wheel")
        _weigh(half, 0.39655, (0.0450921, 0.0256521, 0.0250823), (0.0, 0.105201 * y, 7.09759e-8 * y), _AXES)
        add_geom(half, f"{side}_rear", "cylinder", _WHEEL, (0.0, 0.1225 * y, 0.0), _BLACK, quat=_TILTED)
    second = frame.add_body(name="diff2_ring", pos=(0.32, 0.0, 0.0))
    _weigh(second, 0.0637, _GEAR, iquat=_AXES)
    _spiders(second, "diff2")
    for side in "AB":
        _weigh(second.add_body(name=f"diff2_side{side}"), 0.056, _GEAR, iquat=_AXES)
    _connect(spec)
    return agent


def _weigh(body, mass: float, inertia, ipos=(0.0, 0.0, 0.0), iquat=(1.0, 0.0, 0.0, 0.0)):
    body.mass, body.inertia, body.ipos, body.iquat, body.explicitinertial = mass, inertia, ipos, iquat, True


def _spiders(ring, name: str):
    for side, sign in (("A", 1.0), ("B", -1.0)):
        quat = (0.7071072811865695, 0.0, 0.0, 0.7071062811861719 * sign)
        _weigh(ring.add_body(name=f"{name}_spider{side}", quat=quat), 0.056, _GEAR, iquat=_AXES)


def _connect(spec: mujoco.MjSpec):
    drive = add_motor(spec, "drive", "axle", 1.0, ctrlrange=(-20.0, 20.0), forcelimited=True, forcerange=(-1.0, 1.0))
    drive.set_to_velocity(kv=1.0)
    steer = add_motor(
        spec, "steer", "left_steering", 1.0, ctrlrange=(-_STEER, _STEER), forcelimited=True, forcerange=(-1.0, 1.0)
    )
    steer.set_to_position(kp=1.0)
    equal = spec.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT, objtype=mujoco.mjtObj.mjOBJ_JOINT, name1="left_steering", name2="right_steering"
    )
    equal.data[:5] = (0.0, 1.0, 0.0, 0.0, 0.0)
    for pair in (("left_steering_hinge", "right_steering_hinge"), ("left_steering_hinge", "diff_ring"),
                 # the box is wider than the hull where the front wheels are
                 ("car_body", "left_front_wheel"), ("car_body", "right_front_wheel")):  # fmt: skip
        spec.add_exclude(bodyname1=pair[0], bodyname2=pair[1])


RACECAR = Robot("Racecar", _racecar, timestep=0.004, height=0.05, rk4=True, joints=5)
