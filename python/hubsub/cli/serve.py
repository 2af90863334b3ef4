"""`hubsub serve`: one node in one process, from its start to its graceful end."""

import asyncio
import contextlib
import inspect
import json
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hubsub.cli.common import new_app
from hubsub.config.definitions import KEYS
from hubsub.config.kinds import FLAG

if TYPE_CHECKING:
    from hubsub.control.cluster.process import ClusterProcess

READY = ("redis", "redis_cluster", "http", "ws", "mqtt", "link", "raft")
"""The listeners of the ready line, in its order."""

app = new_app("Runs a node. When it serves it prints one JSON line on stdout.")


def _parameters() -> list[inspect.Parameter]:
    """One option per configuration key, generated from its definition."""

    def option(name: str, kind: Any, *args: Any, **kwargs: Any) -> inspect.Parameter:
        annotation = Annotated[kind, typer.Option(*args, **kwargs)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    options = [
        option(
            "config", Path | None, "--config", "-c", metavar="FILE", help="TOML file; also HUBSUB_CONFIG."
        ),
    ]
    for key in (key for key in KEYS if not key.is_secret):
        if key.kind is FLAG:
            flags = key.flag if key.default is False else f"{key.flag}/--no-{key.flag[2:]}"
            options.append(option(key.name, bool | None, flags, help=key.doc))
        else:
            options.append(option(key.name, str | None, key.flag, metavar=key.metavar, help=key.doc))
    doc = "Sets a limit; may be given several times. `hubsub config show` lists all."
    options.append(option("limits", list[str] | None, "--limit", metavar="NAME=VALUE", help=doc))
    return options


def _serve(config: Path | None = None, **flags: Any) -> None:
    from hubsub.config import load

    resolved = load(config, flags)
    _raise_descriptors()
    code = asyncio.run(_Process(config, flags, resolved).run())
    raise typer.Exit(code)


def _raise_descriptors() -> None:
    """Raises the limit of open descriptors to the hard limit."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Some systems allow less than they report; then the limit stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_serve.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
app.command()(_serve)


class _Process:
    """The parts of a running node, and the order in which they start and end."""

    def __init__(self, path: Path | None, flags: Mapping[str, Any], config: Any) -> None:
        from hubsub.cli.logs import set_up

        set_up(config.log_level, config.log_format)
        import structlog

        from hubsub.cli.sdnotify import Notifier

        self._log = structlog.get_logger()
        self._notifier = Notifier()
        self._path = path
        self._flags = flags
        self._config = config
        self._end = asyncio.Event()
        self._process: ClusterProcess | None = None
        """Set if the node is part of a cluster."""

    async def run(self) -> int:
        """Serves until a signal (0; 1 if the log has failed by then) or the failure of a shard (1)."""
        from hubsub.api import HttpServer, State
        from hubsub.node import Node

        self._say_what_means_nothing()
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_stop, sig)
        process = self._process = self._clustered() if self._config.is_clustered else None
        if process is None:
            node = Node(self._config)
        else:
            self._notifier.status("joins its cluster")
            if not await self._unless_stopped(process.open()):
                await process.stop(drain=False)
                return 0
            self._config = process.config
            node = process.node
        self._state = State(self._config, node)
        self._http = http = HttpServer(self._state)
        self._node = node
        code = 0
        try:
            bound_http = http.bind(self._config.http) if self._config.http else None
            self._notifier.status("opens what it keeps")
            addresses = await node.start() if process is None else {**node.addresses, "raft": process.raft}
            # Publishing the rows of a large batch may take minutes; a request to stop must not wait for it.
            if await self._unless_stopped(self._resume(bound_http)):
                code = await self._serve(addresses, bound_http)
        finally:
            await (node.stop() if process is None else process.stop())
            await http.stop()
        log = node.log()
        if log is not None and log.state == "failed":
            # The exit code shows the failure to whatever supervises the process.
            self._log.error("log has failed, restart when the disk is mended", reason=log.reason)
            code = 1
        self._log.info("node stopped", node=node.name)
        return code

    def _clustered(self) -> "ClusterProcess":
        from hubsub.control.cluster.process import ClusterProcess
        from hubsub.node import Cluster, Node

        def make(config: Any, prepared: Any) -> Node:
            cluster = Cluster(prepared.cluster, prepared.founded)
            return Node(config, cluster, incarnation=prepared.incarnation, accepts=False)

        return ClusterProcess(self._config, make)

    async def _resume(self, bound_http: str | None) -> None:
        """Finishes the work that must be done before clients are served."""
        if self._process is not None:
            from hubsub.api.app import App
            from hubsub.api.linked import Linked

            await self._process.join(bound_http)
            self._state.cluster = self._process.cluster
            self._state.others = Linked(self._process.cluster, self._process.plane, App(self._state))
        await self._state.archived.resume()
        if self._process is None:
            await self._state.batches.resume()

    async def _serve(self, addresses: Mapping[str, str | None], bound_http: str | None) -> int:
        """Announces that the node is ready. Serves until a stop request (0) or the failure of a shard (1)."""
        from hubsub.control import activity, leave_events, load_samples, sys_topics
        from hubsub.node import BUILD_PROFILE
        from hubsub.version import VERSION

        loop, node, code = asyncio.get_running_loop(), self._node, 0
        if bound_http:
            await self._http.start()
        if self._process is not None:
            self._process.accept()
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        ready = {"event": "ready", **dict.fromkeys(READY), **addresses, "http": bound_http}
        print(json.dumps(ready, separators=(",", ":")), flush=True)
        self._status = "serves " + ", ".join(f"{k} {v}" for k, v in ready_fields(ready).items())
        self._notifier.ready(self._status)
        self._log.info(
            "node serves",
            node=node.name,
            shards=node.shards,
            version=VERSION,
            profile=BUILD_PROFILE,
            **ready_fields(ready),
        )
        self._say_descriptors()
        self._state.memory.begin()
        limits = self._state.limit
        beside = (
            loop.create_task(activity.report(node.clients, limits("busiest_log_ms"))),
            loop.create_task(load_samples.report(node, limits("load_sample_ms"))),
            loop.create_task(leave_events.report(node, self._processes)),
            *(
                [loop.create_task(sys_topics.report(node, limits("sys_interval_ms")))]
                if self._config.speaks_mqtt
                else []
            ),
            loop.create_task(self._state.batches.retry()),
            loop.create_task(self._state.memory.report()),
            loop.create_task(self._resume_when_leading()),
            loop.create_task(self._feed_watchdog()),
        )
        try:
            await self._until_end(node if self._process is None else self._process)
        except Exception as error:
            self._log.error("node failed", reason=str(error))
            self._notifier.stopping(f"failed: {error}")
            code = 1
        self._state.stopping = True
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        return code

    @property
    def _processes(self) -> Callable[[], Mapping[str, int]] | None:
        process = self._process
        return None if process is None else lambda: process.cluster.processes

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs a part of the start. Returns whether it was done before a stop request."""
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done() and not self._end.is_set()
        finally:
            end.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _resume_when_leading(self) -> None:
        """On a node of a cluster, resumes unfinished batches once it leads its hubs, some time after it serves."""
        if self._process is not None:
            await self._state.batches.resume_when_leading()

    async def _feed_watchdog(self) -> None:
        """Reports to the service manager that this loop and all shards run, three times per watchdog interval."""
        while self._notifier.watchdog_s is not None:
            if self._node.running:
                self._notifier.watchdog()
            await asyncio.sleep(self._notifier.watchdog_s / 3)

    async def _until_end(self, node: Any) -> None:
        """Returns on a stop request; raises when a shard fails first."""
        end = asyncio.ensure_future(self._end.wait())
        failed = asyncio.ensure_future(node.wait_failed())
        try:
            await asyncio.wait((end, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            end.cancel()
            failed.cancel()

    def _on_stop(self, sig: signal.Signals) -> None:
        self._log.info("stopping", signal=sig.name, drain_ms=self._config.limits["drain_ms"])
        self._notifier.stopping("lets its clients take their output, ends its log")
        self._end.set()

    def _on_reload(self) -> None:
        self._notifier.reloading()
        self._reload()
        self._notifier.ready(self._status)

    def _reload(self) -> None:
        """Applies the settings that may change at run time, and logs those that need a restart."""
        from hubsub.cli.logs import set_up
        from hubsub.config import load, reloaded
        from hubsub.errors import ConfigError, HubSubError

        try:
            reload = reloaded(self._config, load(self._path, self._flags, shards=self._config.shards))
        except ConfigError as error:
            self._log.error(
                "reload refused, the old configuration stays", problems=[str(p) for p in error.problems]
            )
            return
        config = reload.config
        try:
            if reload.limits:
                self._node.reload(config.limits)
        except (HubSubError, ValueError) as error:
            self._log.error("reload refused, the old configuration stays", problems=[str(error)])
            return
        self._config = self._state.config = config
        self._http.reload()
        set_up(config.log_level, config.log_format)
        self._log.info("configuration reloaded", limits=reload.limits, log_level=config.log_level)
        if reload.next_start:
            self._log.warning("takes effect at the next start", keys=reload.next_start)

    def _say_descriptors(self) -> None:
        """Logs the limit of descriptors, and how many of them are reserved from clients."""
        told = self._node.metrics()["node"]
        most, reserved = told["descriptors_max"], told["descriptors_reserved"]
        fields = {"descriptors_max": most, "descriptors_reserved": reserved}
        if reserved < self._config.limits["descriptors_reserved"]:
            hint = "clients and the log's files share few; ulimit -n 1048576 allows more"
            self._log.warning("few descriptors", **fields, hint=hint)
        else:
            self._log.info("descriptors", **fields)

    def _say_what_means_nothing(self) -> None:
        from hubsub.config import unknown_variables

        for variable in unknown_variables(os.environ):
            self._log.warning("unknown variable, ignored", **variable._asdict())
        if self._config.insecure_open:
            self._log.warning(
                "listeners may be open to other machines and there are no users", key="insecure_open"
            )


def ready_fields(ready: Mapping[str, object]) -> dict[str, object]:
    return {k: v for k, v in ready.items() if k != "event" and v is not None}
