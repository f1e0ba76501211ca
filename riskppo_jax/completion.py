"""Shell completion: a script for each shell, with verbs, options, tasks and presets written into it.

The script never starts Python, so a press of Tab costs nothing.
"""

import argparse
import importlib
import shlex
from collections.abc import Mapping

from riskppo_jax.cli import VERBS

SHELLS = ("bash", "zsh", "fish")
_RUNS = ("evaluate", "export", "plot", "render", "report", "watch")  # verbs that take run directories


def script(shell: str) -> str:
    """The completion script of `bash`, `zsh` or `fish`."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](options(), choices())


def options() -> dict[str, list[str]]:
    """Verb -> the options it knows."""
    found = {}
    for verb in VERBS:
        parser = argparse.ArgumentParser(add_help=True)
        importlib.import_module(f"riskppo_jax.cli.{verb}").configure(parser)
        flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        subjects = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        found[verb] = [*flags, *(name for choice in subjects for name in choice)]
    return found


def choices() -> dict[str, list[str]]:
    """Setting -> the words it accepts, for settings that have a list of them."""
    from riskppo_jax.engines.base import ENGINES
    from riskppo_jax.envs.registry import list_envs
    from riskppo_jax.settings import conf_dir

    presets = {
        group: sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        for group in ("algo", "experiment", "launcher", "risk")
    }
    rest = {"engine": ["auto", *ENGINES], "threshold": ["paper", "v1"], "resume": ["true", "false"]}
    free = ("noise", "output", "risk.beta", "seed", "sweep.risk.beta", "sweep.seed", "total_steps")
    plain: dict[str, list[str]] = {key: [] for key in free}
    return {"env": list_envs(), **presets, "objective": presets["risk"], **rest, **plain}


def _bash(options: Mapping[str, list[str]], choices: Mapping[str, list[str]]) -> str:
    by_verb = "\n".join(f"    {verb}) words={shlex.quote(' '.join(flags))} ;;" for verb, flags in options.items())
    by_key = "\n".join(
        f"    {key}) words={shlex.quote(' '.join(values))} ;;" for key, values in choices.items() if values
    )
    keys = " ".join(f"{key}=" for key in choices)
    return f"""# completion of riskppo for bash: riskppo completion bash > FILE, and `source FILE` in ~/.bashrc
_riskppo() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" words="" key="" prefix=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(options)} --version --help" -- "$current")); return
  fi
  # bash cuts words at `=`, zsh does not: `env=Saf` arrives as `env`, `=`, `Saf` or whole
  if [ "$current" = "=" ]; then key="${{COMP_WORDS[COMP_CWORD-1]}}"; current=""
  elif [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "=" ]; then key="${{COMP_WORDS[COMP_CWORD-2]}}"
  elif [[ "$current" == *=* && "$current" != -* ]]; then
    key="${{current%%=*}}"; prefix="$key="; current="${{current#*=}}"
  elif [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "--env" ] || [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "--random" ]; then key=env
  elif [ "${{COMP_WORDS[COMP_CWORD-1]}}" = "--engine" ]; then key=engine
  fi
  if [ -n "$key" ]; then
    case "$key" in
{by_key}
    output) COMPREPLY=($(compgen -d -P "$prefix" -- "$current")); return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -P "$prefix" -- "$current")); return
  fi
  case "$verb" in
{by_verb}
  esac
  if [ "$verb" = train ]; then
    COMPREPLY=($(compgen -W "$words {keys}" -- "$current"))
    [ "${{#COMPREPLY[@]}}" -gt 0 ] && type compopt > /dev/null 2>&1 && compopt -o nospace 2> /dev/null
    return 0
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case "$verb" in {"|".join(_RUNS)})
    local folder
    while IFS= read -r folder; do
      [ -n "$folder" ] && COMPREPLY+=("$folder")
    done < <(compgen -d -- "$current") ;;
  esac
  return 0
}}
complete -F _riskppo riskppo
"""


def _zsh(options: Mapping[str, list[str]], choices: Mapping[str, list[str]]) -> str:
    return "# completion of riskppo for zsh, through zsh's own reading of bash's\n" + (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    ) + _bash(options, choices)  # fmt: skip


def _fish(options: Mapping[str, list[str]], choices: Mapping[str, list[str]]) -> str:
    lines = ["# completion of riskppo for fish: riskppo completion fish > ~/.config/fish/completions/riskppo.fish"]
    lines.append("complete -c riskppo -f")
    for verb, summary in VERBS.items():
        lines.append(f"complete -c riskppo -n __fish_use_subcommand -a {verb} -d {shlex.quote(summary)}")
    for verb, flags in options.items():
        inside = f"-n '__fish_seen_subcommand_from {verb}'"
        lines += [f"complete -c riskppo {inside} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
        words = " ".join(flag for flag in flags if not flag.startswith("--"))
        lines += [f"complete -c riskppo {inside} -a {shlex.quote(words)}"] if words else []
        if verb in _RUNS:
            lines.append(f"complete -c riskppo {inside} -a '(__fish_complete_directories)'")
    for key, values in choices.items():
        words = " ".join(f"{key}={value}" for value in values) or f"{key}="
        lines.append(f"complete -c riskppo -n '__fish_seen_subcommand_from train' -a {shlex.quote(words)}")
    return "\n".join(lines) + "\n"
