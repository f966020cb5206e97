"""`hvd-launch completion`: a script that lets a shell complete hvd-launch's command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

HELP = "print a script for the shell's completion"
EXAMPLE = 'eval "$(hvd-launch completion bash)"'
SHELLS = ("bash", "zsh", "fish")

# Words before COMMAND are ours; after it the shell completes as it does for any command.
_BASH = """\
_hvd_launch() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${{COMP_WORDS[i]}} == -- ]]; then
            if ((i + 1 == COMP_CWORD)); then
                COMPREPLY=($(compgen -c -- "$word"))
            fi
            return
        fi
    done
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W {subcommands} -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}} $previous" in
{values}
    esac
    case "${{COMP_WORDS[1]}}" in
{options}
    esac
}}
complete -o default -F _hvd_launch hvd-launch"""
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = "Print a script for the shell's completion; the shell evaluates it."
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Print the script."""
    del command
    from hvd_launch.cli import parser

    subcommands = dict(_subparsers(parser()))
    if options.shell == "fish":
        print("\n".join(_fish(subcommands)))
        return 0
    if options.shell == "zsh":
        print(_ZSH)
    print(_bash(subcommands))
    return 0


def _bash(subcommands: dict[str, argparse.ArgumentParser]) -> str:
    values, options = [], []
    for name, child in subcommands.items():
        for action in _actions(child):
            if action.choices and action.option_strings:
                words = shlex.quote(" ".join(map(str, action.choices)))
                patterns = "|".join(f'"{name} {option}"' for option in action.option_strings)
                values.append(
                    f'        {patterns}) COMPREPLY=($(compgen -W {words} -- "$word")); return ;;'
                )
        offered = [option for action in _actions(child) for option in action.option_strings]
        offered += [
            str(c) for a in _actions(child) if not a.option_strings for c in a.choices or ()
        ]
        words = shlex.quote(" ".join(offered))
        options.append(f'        {name}) COMPREPLY=($(compgen -W {words} -- "$word")) ;;')
    return _BASH.format(
        subcommands=shlex.quote(" ".join(subcommands)),
        values="\n".join(values),
        options="\n".join(options),
    )


def _fish(subcommands: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, child in subcommands.items():
        yield f"complete -c hvd-launch -n __fish_use_subcommand -f -a {name}"
        for action in _actions(child):
            line = f"complete -c hvd-launch -n '__fish_seen_subcommand_from {name}'"
            for option in action.option_strings:
                kind = "l" if option.startswith("--") else "s" if len(option) == 2 else "o"
                line += f" -{kind} {option.lstrip('-')}"
            if action.choices:
                line += f" -x -a {shlex.quote(' '.join(map(str, action.choices)))}"
            yield line


def _actions(child: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in child._actions if a.help is not argparse.SUPPRESS]


def _subparsers(
    top: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
