"""The command line, ``flexfa4`` or ``python -m flexfa4``.

::

    commands     the commands and their arguments
    named_mods   the mod that a command is given: a variant, ``module:function`` or text
    compile      ``flexfa4 compile``
    emulate      ``flexfa4 emulate``
    doctor       what this machine can run

Loads rich, so nothing else of FlexFA4 imports it.
"""

import warnings

with warnings.catch_warnings():
    # torch tells that there is no numpy, which no command needs
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from flexfa4.cli.commands import main

__all__ = ["main"]
