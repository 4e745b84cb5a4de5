"""The text form of graphs: the dump format, and a language to write mods in.

::

    printing    graph -> text, and the entry for reading
    vocabulary  names, functions and operators, from the ops table
    grammar     text -> tree (lark), and its syntax errors
    syntax      source and tree as the reader sees them
    parser      tree -> graph
    names       what a name means where it stands
    bindings    values given for names
    snapshots   graph and values as plain data, for pickle

Nothing is ever evaluated as Python.
"""
