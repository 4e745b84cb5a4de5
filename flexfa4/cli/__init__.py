"""The command line, ``flexfa4`` or ``python -m flexfa4``.

::

    commands     the commands and their arguments
    named_mods   the mod that a command is given: a variant, ``module:function`` or text
    emulate      ``flexfa4 emulate``
    doctor       what this machine can run

Loads rich, so nothing else of FlexFA4 imports it.
"""

from flexfa4.cli.commands import main

__all__ = ["main"]
