"""Trees as lists of parents or of paths, and the matrix of who descends from whom.

What the nodes stand for, tokens or documents, is the business of the masks that read the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flexfa4.errors import ArgumentError
from flexfa4.variants.parameters import as_sequence, require_wholes


def require_parents(name: str, parents: Sequence[int], *, count: int | None = None) -> None:
    """Refuse what is no forest in order: the parent of node i is -1 (a root) or a node before i.

    Args:
        name: of the parameter, for the message.
        parents: what was passed.
        count: the number of nodes that it must have, None for any but 0.

    Raises:
        ArgumentError: it is not.
    """
    require_wholes(name, parents, at_least=-1)
    if len(parents) != count if count is not None else not parents:
        raise ArgumentError(
            name=name,
            found_value=f"a list of {len(parents)}",
            expected=f"a parent for each of {count} nodes" if count else "one node or more",
            rewrite="a list such as [-1, 0, 0, 1]",
        )
    for node, parent in enumerate(parents):
        if parent >= node:
            raise ArgumentError(
                name=f"{name}[{node}]",
                found_value=repr(parent),
                expected=f"the parent of node {node}: a node before it, or -1 for a root",
                rewrite="number the nodes so that each parent comes before its children",
            )


def parents_by_paths(name: str, paths: Sequence[Sequence[int]]) -> list[int]:
    """Return the parent of each node of the tree with these paths from its root.

    Args:
        name: of the parameter, for the message.
        paths: for each node but the root the ranks of the choices that lead to it, in any order.

    Returns:
        -1 for the root, then the parents of the other nodes in the order of depth, then of ranks.

    Raises:
        ArgumentError: a path is no list of ints of at least 0, is empty, occurs twice, or its
            parent has no path.
    """
    given = as_sequence(name, paths, of="lists of ints", such_as="[[0], [1], [0, 0]]")
    for index, path in enumerate(given):
        require_wholes(f"{name}[{index}]", path, at_least=0)
    ordered = [(), *sorted(map(tuple, paths), key=lambda path: (len(path), path))]
    number = {path: node for node, path in enumerate(ordered)}
    for node, path in enumerate(ordered[1:], 1):
        if not path:
            problem, rewrite = "an empty path", "leave it out: the root has no path"
        elif path[:-1] not in number:
            problem, rewrite = f"{list(path)} without its parent", f"add {list(path[:-1])}"
        elif number[path] != node:
            problem, rewrite = f"{list(path)} twice", "leave one of them out"
        else:
            continue
        raise ArgumentError(
            name=name,
            found_value=f"a list with {problem}",
            expected="one path to every node but the root, at least one rank long",
            rewrite=rewrite,
        )
    return [-1, *(number[path[:-1]] for path in ordered[1:])]


def ancestor_matrix(parents: Sequence[int]) -> torch.Tensor:
    """Return where node j is node i or an ancestor of it: bool (N, N), i the row.

    Args:
        parents: as `require_parents` wants them.
    """
    matrix = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            matrix[node] |= matrix[parent]
    return matrix
