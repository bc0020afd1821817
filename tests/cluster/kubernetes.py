"""
As much of a Kubernetes API as Sail needs to run its workers: a pod is a process of this machine.

Sail asks for a pod for each worker, and deletes the pods of a session by their labels. As in a container, where SIGTERM
does nothing to it, a worker that does not end by itself is killed after its grace period.
"""

import json
import os
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.cluster.clusters import PYTHON, Sail, cpu_s

#: What docs/cluster.md says to set.
POD_TEMPLATE = {"spec": {"containers": [], "terminationGracePeriodSeconds": 1}}


class Pods:
    """The processes of pods, by name."""

    def __init__(self, logs: Path, python: Path) -> None:
        self._logs = logs
        self._python = python
        self._lock = threading.Lock()
        self._running: dict[str, tuple[subprocess.Popen[bytes], dict[str, Any]]] = {}

    def start(self, pod: dict[str, Any]) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        # What comes from the pod's own fields is its address.
        given = {item["name"]: item.get("value") or "127.0.0.1" for item in container["env"]}
        environ = {**os.environ, **given, "SAIL_CLUSTER__WORKER_LISTEN_HOST": "127.0.0.1"}
        with (self._logs / f"{name}.log").open("wb") as log:
            command = [str(self._python), "-m", "pysail", *container["args"]]
            process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with self._lock:
            self._running[name] = process, pod
        pod["metadata"]["uid"] = str(process.pid)

    def delete(self, labels: dict[str, str]) -> None:
        """Kill the pods with these labels after their grace periods. Does not wait."""
        with self._lock:
            pods = list(self._running.values())
        for process, pod in pods:
            if labels.items() <= pod["metadata"].get("labels", {}).items():
                timer = threading.Timer(pod["spec"].get("terminationGracePeriodSeconds", 30), process.kill)
                timer.daemon = True
                timer.start()

    def kill(self) -> None:
        """Kill all pods at once."""
        with self._lock:
            ended = [process for process, _ in self._running.values()]
            self._running.clear()
        for process in ended:
            process.kill()
            process.wait()

    def pids(self) -> list[int]:
        """Return the processes that run."""
        with self._lock:
            return [process.pid for process, _ in self._running.values() if process.poll() is None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: Pods

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.pods.start(pod)
        self._answer(201, pod)

    def do_DELETE(self) -> None:
        selector = parse_qs(urlsplit(self.path).query).get("labelSelector", [""])[0]
        self.pods.delete(dict(term.split("=", 1) for term in selector.split(",") if "=" in term))
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_GET(self) -> None:
        self._answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class SailCluster(Sail):
    """Sail with *workers* worker processes for each session."""

    def __init__(self, directory: Path, workers: int = 2, port: int | None = None, python: Path = PYTHON) -> None:
        self.pods = Pods(directory, python)
        handler = type("Handler", (_Handler,), {"pods": self.pods})
        self._api = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._api.daemon_threads = True
        kubeconfig = directory / "kubeconfig.yaml"
        server = {"server": f"http://127.0.0.1:{self._api.server_address[1]}"}
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "tests",
                    "contexts": [{"name": "tests", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
                    "clusters": [{"name": "c", "cluster": server}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        environ = {
            "KUBECONFIG": str(kubeconfig),
            "SAIL_MODE": "kubernetes-cluster",
            "SAIL_CLUSTER__WORKER_INITIAL_COUNT": str(workers),
            "SAIL_CLUSTER__WORKER_MAX_COUNT": str(workers),
            "SAIL_CLUSTER__WORKER_TASK_SLOTS": "8",
            "SAIL_CLUSTER__WORKER_HEARTBEAT_TIMEOUT_SECS": "30",
            "SAIL_EXECUTION__DEFAULT_PARALLELISM": "2",
            "SAIL_KUBERNETES__WORKER_POD_TEMPLATE": json.dumps(POD_TEMPLATE),
        }
        super().__init__(directory, port=port, python=python, environ=environ)

    def __enter__(self) -> Self:
        threading.Thread(target=self._api.serve_forever, daemon=True).start()
        return super().__enter__()

    def pids(self) -> list[int]:
        """Return the processes of the server and its workers."""
        return [*super().pids(), *self.pods.pids()]

    def kill_a_worker(self) -> None:
        """Kill the worker that computes most."""
        before = {pid: cpu_s(pid) for pid in self.pods.pids()}
        time.sleep(0.25)
        os.kill(max(before, key=lambda pid: cpu_s(pid) - before[pid]), signal.SIGKILL)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.pods.kill()
        self._api.shutdown()
        self._api.server_close()
