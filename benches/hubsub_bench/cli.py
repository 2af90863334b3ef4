"""`hubsub bench`: one command per scenario, `all`, `cluster`, `pipeline`, `capacity`."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hubsub_bench.cluster.cli import cluster
from hubsub_bench.log_scenarios import LOG_BY_NAME, LOG_SCENARIOS, LogScenario
from hubsub_bench.mqtt_scenarios import MQTT_BY_NAME, MQTT_SCENARIOS
from hubsub_bench.phoenix_scenarios import PHOENIX_BY_NAME, PHOENIX_SCENARIOS
from hubsub_bench.scenarios import BY_NAME, SCENARIOS, Scenario

app = typer.Typer(
    help="Measure a node, and a peer in turn with it. Figures are of one machine and time: quote ratios.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SIZE = "10GB"
"""Default size of a filled log."""

CONNECTIONS_MIN = 1_000
"""Minimum for `capacity`: memory is allocated in pieces, so a figure per connection needs many."""

Against = Annotated[
    str | None,
    typer.Option(
        help="The peer: `redis-server` or `mosquitto` (started for every run), redis://HOST:PORT or "
        "mqtt://HOST:PORT (running). Rows of another protocol run without it."
    ),
]
Pairs = Annotated[int, typer.Option(min=1, help="Runs of each server; they take turns.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Length of every measured window.")]
Shards = Annotated[int | None, typer.Option(min=1, help="Shards and cores of the node; default: the row's.")]
ServerCmd = Annotated[
    str | None,
    typer.Option(
        help="A program that serves and prints the ready line, instead of `hubsub serve`; gets --shards."
    ),
]
Running = Annotated[
    str | None, typer.Option(help="A node that runs already: redis://HOST:PORT, or mqtt://HOST:PORT.")
]
Pid = Annotated[int | None, typer.Option(help="Process of --target; default: what its INFO says.")]
Spin = Annotated[
    bool,
    typer.Option(
        "--spin", help="The generator never sleeps: steadier figures, without the cost of waking it."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Directory for the results; default: benches/results/DATE-COMMIT.")
]


Data = Annotated[
    Path | None,
    typer.Option(
        help="Directory on the disk that is measured; what is made there is removed. Default: the system's."
    ),
]
Size = Annotated[str, typer.Option(help="Of the log, where one is filled: `10GB`, `50MB`.")]

ALL: dict[str, Scenario | LogScenario] = {
    **BY_NAME,
    **MQTT_BY_NAME,
    **PHOENIX_BY_NAME,
    **LOG_BY_NAME,
}


def _add(scenario: Scenario) -> None:
    def command(
        against: Against = None,
        pairs: Pairs = 3,
        seconds: Seconds = 5.0,
        shards: Shards = None,
        server_cmd: ServerCmd = None,
        target: Running = None,
        pid: Pid = None,
        spin: Spin = False,
        out: Out = None,
    ) -> None:
        _run([scenario], locals())

    app.command(scenario.name, help=f"{scenario.title[0].upper()}{scenario.title[1:]}.")(command)


def _add_log(scenario: LogScenario) -> None:
    def command(
        against: Against = None,
        pairs: Pairs = 3,
        seconds: Seconds = 5.0,
        shards: Shards = None,
        server_cmd: ServerCmd = None,
        data: Data = None,
        size: Size = SIZE,
        out: Out = None,
    ) -> None:
        _run([scenario], locals())

    app.command(scenario.name, help=f"{scenario.title[0].upper()}{scenario.title[1:]}.")(command)


for _scenario in (*SCENARIOS, *MQTT_SCENARIOS, *PHOENIX_SCENARIOS):
    _add(_scenario)
for _log_scenario in LOG_SCENARIOS:
    _add_log(_log_scenario)

app.command("cluster")(cluster)


@app.command("all")
def run_all(
    only: Annotated[str | None, typer.Option(help="Names of scenarios, with commas between.")] = None,
    against: Against = None,
    pairs: Pairs = 3,
    seconds: Seconds = 5.0,
    shards: Shards = None,
    server_cmd: ServerCmd = None,
    target: Running = None,
    pid: Pid = None,
    spin: Spin = False,
    data: Data = None,
    size: Size = SIZE,
    out: Out = None,
) -> None:
    """Runs every scenario and prints one table; --target leaves out those that fill or restart a log."""
    from hubsub_bench.session import names_of

    _run([ALL[name] for name in names_of(only, ALL, _spoken_by(target))], locals())


def _spoken_by(target: str | None) -> list[str]:
    """The rows that a running server can be measured by; all without one."""
    match target:
        case None:
            return list(ALL)
        case mqtt if mqtt.startswith("mqtt://"):
            return [scenario.name for scenario in MQTT_SCENARIOS if scenario.protocols == {"mqtt"}]
        case _:
            return list(BY_NAME)


@app.command()
def pipeline(
    only: Annotated[str | None, typer.Option(help="Names of rows, with commas between.")] = None,
    against: Annotated[
        str | None,
        typer.Option(help="A topic of a broker that runs: kafka://HOST:PORT/TOPIC; it gets the rows."),
    ] = None,
    records: Annotated[int, typer.Option(min=1_000, help="Rows that Spark reads.")] = 4_000_000,
    gib: Annotated[float, typer.Option(min=0.01, help="GiB of the log that is read beside publishes.")] = 1.0,
    pairs: Pairs = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of windows of publishes.")] = 10.0,
    shards: Annotated[
        int, typer.Option(min=1, help="Shards and cores of the node; Spark has the others.")
    ] = 2,
    server_cmd: ServerCmd = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark.")] = None,
    data: Data = None,
    out: Out = None,
) -> None:
    """Measures Spark reading from a node, beside the same rows from a file, as tuples, and from Kafka."""
    from hubsub.pipeline.session import check_pyspark, parse_conf
    from hubsub_bench import servers
    from hubsub_bench.load import find_program
    from hubsub_bench.runner import Result
    from hubsub_bench.session import Session, names_of

    check_pyspark()
    from hubsub_bench.spark.kafka import parse
    from hubsub_bench.spark.rows import PIPELINE_BY_NAME
    from hubsub_bench.spark.runner import run_pipeline

    names = names_of(only, PIPELINE_BY_NAME, list(PIPELINE_BY_NAME))
    kafka = None if against is None else parse(against)
    settings = parse_conf(conf or ())
    find_program()
    session = Session(PIPELINE_BY_NAME, out, "pipeline")
    results = list[Result]()
    for name in names:
        results += run_pipeline(
            PIPELINE_BY_NAME[name],
            servers.HubSubServer(server_cmd),
            data=data or Path(tempfile.gettempdir()),
            records=records,
            log_bytes=int(gib * 2**30),
            pairs=pairs,
            seconds=seconds,
            shards=shards,
            kafka=kafka,
            conf=settings,
            on_row=session.on_row,
        )
        session.write(results)
    session.end(results)


@app.command()
def capacity(
    seconds: Seconds = 5.0,
    connections: Annotated[
        int, typer.Option(help=f"Connections that are measured, {CONNECTIONS_MIN:,} or more.")
    ] = 15_000,
    server_cmd: ServerCmd = None,
    against: Annotated[
        str | None, typer.Option(help="Measure this instead of HubSub: `redis-server`.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the Markdown; default: standard output.")] = None,
) -> None:
    """Measures messages a second per core, bytes per connection and room; computes needs of up to 1M connections."""
    if connections < CONNECTIONS_MIN:
        raise typer.BadParameter(
            f"--connections {connections} is too few: below {CONNECTIONS_MIN:,} what one costs drowns in what "
            "the server allocates at once"
        )
    from hubsub_bench import brokers, servers
    from hubsub_bench.capacity import measure
    from hubsub_bench.capacity_page import page

    subject = brokers.parse_peer(against) if against else servers.HubSubServer(server_cmd)
    text = page(measure(subject, connections=connections, seconds=seconds))
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text, encoding="utf-8")


def _run(scenarios: Sequence[Scenario | LogScenario], options: Mapping[str, Any]) -> None:
    """Runs scenarios in turn.

    Args:
        scenarios: The rows.
        options: Options of the command by name; a command of one kind lacks those of the other.
    """
    from hubsub.config.kinds import Bad, parse_size
    from hubsub_bench import BenchError, brokers, servers
    from hubsub_bench.load import find_program
    from hubsub_bench.log_runner import run_log_scenario
    from hubsub_bench.machine import need_descriptors
    from hubsub_bench.plot import plot
    from hubsub_bench.runner import Result, run_scenario
    from hubsub_bench.session import Session

    size, target, out = options.get("size", SIZE), options.get("target"), options["out"]
    try:
        size_bytes = parse_size(size)
    except Bad as error:
        raise BenchError(f"--size {error.reason}", size, error.hint) from error
    logged = [scenario.name for scenario in scenarios if isinstance(scenario, LogScenario)]
    if target and logged:
        raise BenchError("a running server cannot be restarted on a new log", ", ".join(logged))
    find_program()
    need_descriptors(17_000)
    ours: servers.Target = (
        brokers.running(target, options["pid"], "HubSub")
        if target
        else servers.HubSubServer(options["server_cmd"])
    )
    unspoken = [
        scenario.name
        for scenario in scenarios
        if isinstance(scenario, Scenario) and not scenario.protocols <= ours.protocols
    ]
    if unspoken:
        raise BenchError("the server does not speak what these rows need", ", ".join(unspoken))
    peer = brokers.parse_peer(options["against"]) if options["against"] else None
    for server in (ours, peer):
        if isinstance(server, servers.RunningServer | brokers.RunningBroker):
            server.check()
    session = Session(ALL, out)

    common = {name: options[name] for name in ("pairs", "seconds", "shards")} | {"on_row": session.on_row}

    def result(scenario: Scenario | LogScenario) -> Result:
        if isinstance(scenario, LogScenario):
            place = options.get("data") or Path(tempfile.gettempdir())
            return run_log_scenario(scenario, ours, peer, data=place, size=size_bytes, **common)
        return run_scenario(scenario, ours, peer, spin=options.get("spin", False), **common)

    results = [result(scenario) for scenario in scenarios]
    session.end(results, plot(results, session.path))
