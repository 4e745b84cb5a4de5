"""What forward kernels of all architectures have in common.

From a call to a launch, with what differs between architectures behind one interface::

    function        the entry: a request becomes a launch, prepared once for each form of calls
    call            the plan of a call, and the values of its launches
    architecture    what an architecture has to say
    support         which calls are served, by device, dtype and head dims
    compiled        the kernel of a plan: kept, or compiled now
    model           how long a launch takes, from how long tiles take
    describe        a plan and a kernel in words
    empty_captures  refuses to read captured tensors that have no element

and what they are about::

    plan    what code depends on, whatever it runs on, and the order of a kernel's parameters
    tiles   how tiles lie in shared memory
    varlen  packed sequences whose lengths only the device knows: the entry; varlen_call has
            the plans and values of such calls

In a kernel that is traced, with CuTe-DSL::

    parameters          the values of a launch
    set_up              what blocks set up alike
    traced_parameters   what of them is the same for backward kernels

The skeletons are `kernels.sm90.forward` and `kernels.sm100.forward`.
"""
