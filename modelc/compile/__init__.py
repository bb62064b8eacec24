"""A model and a target go in, a verified package comes out.

options.py       what a row of the table of options says, and how texts of the command line are read
request.py       what is asked for: the table of options, for the command line, the library and modelc.yaml
config.py        the configuration: defaults, and what a user's file changes
opened.py        a dimension that is left open, and the sizes of it that matter
found_order.py   Tasks run when the sizes are known that they depend on
pinned.py        extents that a few samples do not pin down
inputs.py        what of a model's inputs is fixed, by flags, data and configuration
choices.py       choices.json: what an earlier package chose
stages.py        names and times of the stages
precision.py     which contractions multiply bfloat16
byte_prices.py   which of a quantized model stay in float32 by their price
programs.py      a model as Programs, in chosen layouts and precision
publish.py       a package takes its place when it has been found right
result.py        what `compile` gives back
pipeline.py      the stages in order
opening.py       which dimensions are left open, and the compilation for every size of them
command.py       the command: a Request becomes a Run of the pipeline
verification.py  a package that is there, verified again
minimise.py      delta debugging
reduction.py     a model made small that is refused or computed wrongly
arrays.py        files of arrays, read and written
explain.py       why a package's kernels are as they are
doctor.py        what modelc works with on this machine
describe.py      `inspect`: what a model or a package is
targets.py       `modelc.targets`
"""
