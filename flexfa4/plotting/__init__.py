"""Pictures of mods, by matplotlib, which is loaded when one is asked for and not before.

::

    figures    what all pictures share: colours, axes, and checks of what can be drawn
    masks      plot_mask: which scores are visible, and which blocks are computed for them
    scores     plot_score_mod: what a score mod adds by position, or makes of each score

Figures are made without pyplot, so nothing here touches a display or another figure's state;
callers save or show what they get.
"""
