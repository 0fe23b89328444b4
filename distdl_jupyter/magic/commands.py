"""``%distdl`` runs a ``distdl`` command in this notebook, and ``%dist_config`` changes settings.

The other line magics are short forms of commands: ``%dist_logs -f k3f9`` runs ``%distdl logs -f k3f9``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.options import check_options
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form.arguments import Parser, make_magic_parser, parse_env, parse_pairs, parse_value, split_line
from distdl_jupyter.jobs import jobspec
from distdl_jupyter.magic.session import Session, make_magic, say

#: The ``distdl`` command that each line magic runs.
COMMANDS = {
    "distdl": "",
    "dist_jobs": "ls",
    "dist_attach": "show",
    "dist_logs": "logs --tail 200",
    "dist_check": "check",
    "dist_stacks": "stacks",
    "dist_checkpoints": "checkpoints",
    "dist_profile": "profile",
    "dist_time": "time",
    "dist_resources": "resources",
    "dist_cancel": "stop --no-wait",
    "dist_clusters": "clusters",
}
#: Methods by which IPython displays an object.
_DISPLAY_METHODS = ("_repr_html_", "_repr_mimebundle_", "_ipython_display_")
_CONFIG_HELP = """
    Show or set this kernel's defaults for %%distributed.

    Example: ``%dist_config process_count_per_node=2 distributed_backend=horovod-gloo``. An empty value removes one.
    ``%dist_config azure`` shows the Azure sign-in and signs in (``azure credential=device_code``);
    ``%dist_config monitoring enabled=true`` reports ended jobs to a monitoring system; ``%dist_config tracking
    track=mlflow`` tracks every job; ``%dist_config warm`` shows the state of warm starts (``warm off`` turns them
    off). These settings apply to all kernels.
    """


def create_magics(session: Session) -> dict[str, Callable[[str], Any]]:
    """Return the functions to register, by name; their docstrings are the help texts."""
    text = "Show or set this kernel's defaults for %%distributed."
    magics = {"dist_config": make_magic("dist_config", partial(_run_config, session), text, make_config_parser)}
    for name, arguments in COMMANDS.items():
        command = f"distdl {arguments.partition(' ')[0]}".strip()
        text = f"Run ``{command}`` in this notebook and return its result. ``%{name} --help`` lists its options."
        magics[name] = make_magic(name, partial(_run, session, name), text)
    return magics


def _run(session: Session, name: str, line: str) -> Any:
    """Run a command and return the object to display, or None if it has printed its output.

    The default job is the newest one of this kernel.
    """
    from distdl_jupyter.cli import command, make_parser

    arguments = [*shlex.split(COMMANDS[name]), *split_line(line)]
    if name == "dist_cancel" and line.strip() in ("", "--now"):
        arguments.append(session.find_job().id)
    parser = make_parser()
    args = parser.parse_args(arguments)
    if not hasattr(args, "run"):
        parser.print_help()
        return None
    if getattr(args, "id", "") is None:
        args.id = session.newest_job_id or None
    if args.command == "check" and getattr(args, "script", "") is None:
        args.script = session.find_job().id
    reply = command.run_command(args)
    has_display = any(hasattr(reply.value, name) for name in _DISPLAY_METHODS)
    is_text = reply.value is None or (reply.text is not None and not has_display)
    if is_text or getattr(args, "json", False) or getattr(args, "csv", False):
        command.print_reply(reply, args)
        return None
    for note in reply.notes:
        say(note)
    return reply.value


def _run_config(session: Session, line: str) -> Any:
    args = make_config_parser().parse(line)
    topic, *settings = args.settings or [""]
    if topic == "warm":
        flags = [f"--{setting.replace('_', '-')}" if "=" in setting else setting for setting in settings]
        return _run(session, "distdl", shlex.join(["warm", *flags]))
    if topic in TOPICS:
        options = {"as_panel": hasattr(session.ip, "kernel")} if topic == "azure" else {}
        return TOPICS[topic](parse_pairs(settings), **options)
    if args.clear:
        session.defaults.clear()
    changes = {name.replace("-", "_"): value for name, value in parse_pairs(args.settings).items()}
    session.defaults = update_defaults(session.defaults, changes)
    say(_format_settings(session.defaults))
    return None


def make_config_parser() -> Parser:
    """Return the parser of ``%dist_config``."""
    parser = make_magic_parser("%dist_config", _CONFIG_HELP, usage=" [azure|monitoring|tracking|warm] [NAME=VALUE ...]")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="Options, under any of their names.")
    parser.add_argument("--clear", action="store_true", help="Remove all defaults first.")
    return parser


def update_defaults(defaults: dict[str, Any], changes: dict[str, str]) -> dict[str, Any]:
    """Return the defaults with the changes; an empty value removes a default. Raises InvalidSpec."""
    values = {name: parse_value(text) for name, text in changes.items() if text}
    removed = jobspec.resolve_options(dict.fromkeys(changes.keys() - values.keys()))
    if isinstance(env := values.pop("env", values.pop("environment_variables", None)), str):
        values["environment_variables"] = {**defaults.get("environment_variables", {}), **parse_env(env.split(","))}
    result = {**defaults, **jobspec.resolve_options(values)}
    result = {name: value for name, value in result.items() if name not in removed}
    check_options(result)
    if label := result.get("distributed_backend"):
        registry.load_backend(str(label), {})
    if target := result.get("compute_target"):
        cluster_configs.find(str(target))
    return result


def _format_settings(defaults: dict[str, Any]) -> str:
    settings = dict(defaults)
    if variables := settings.get("environment_variables"):
        assignments = (f"{name}={'•••' if is_secret(name, str(value)) else value}" for name, value in variables.items())
        settings["environment_variables"] = ", ".join(assignments)
    empty_message = "No defaults are set. Set one with: %dist_config process_count_per_node=2"
    return "\n".join(f"{name} = {value}" for name, value in sorted(settings.items())) or empty_message


# settings for all kernels -----------------------------------------------------------------------------


def change_azure(changes: Mapping[str, str], *, as_panel: bool = True) -> Any:
    """Change Azure settings, and sign in if ``credential`` is given. Raises InvalidSpec.

    Return the sign-in panel, or print the account if ``as_panel`` is false, as in a terminal.
    """
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.views import azure as azure_view
    from distdl_jupyter.widgets.azure import azure_sign_in

    if changes.get("credential"):
        identity.sign_in(changes["credential"], **{name: changes[name] for name in changes if name != "credential"})
    elif changes:
        settings.change(**changes)
    if as_panel:
        return azure_sign_in()
    say("\n".join(azure_view.format_sign_in(azure_view.make_sign_in_view())))
    return None


def change_monitoring(changes: Mapping[str, str]) -> None:
    """Change the settings of telemetry and messages, and send a test message to a new address.

    Raises InvalidSpec, MessageNotSent.
    """
    from distdl_jupyter.tracking import messages, telemetry

    settings = messages.configure(**changes)
    say(f"enabled = {settings.enabled}")
    say(f"destination = {', '.join(telemetry.list_destinations()) or 'not set in the environment'}")
    say(f"address = {messages.notifications().service or 'none'}")
    say(f"notify = {settings.notify}")
    if changes.get("address"):
        say(f"A message was sent to {messages.notifications(test=True).service}.")


def change_tracking(changes: Mapping[str, str]) -> None:
    """Change the settings of experiment trackers. Raises InvalidSpec."""
    from distdl_jupyter.core import user_settings
    from distdl_jupyter.tracking.trackers import find_mlflow_address, get_host

    settings = user_settings.change_settings("tracking", **changes)
    say(f"track = {settings.track or 'none'}")
    say(f"mlflow = {get_host(find_mlflow_address(settings))}")
    say(f"artifacts = {settings.artifacts}")


#: The function for each topic, which is the first word of the line. The topic ``warm`` runs ``distdl warm``.
TOPICS: dict[str, Any] = {"azure": change_azure, "monitoring": change_monitoring, "tracking": change_tracking}
