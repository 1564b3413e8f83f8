"""Tests of the tests: small wrong changes to the code, mutants, each of which some test must
notice.

    python -m tests.mutants                      all of them, those that were tried before left out
    python -m tests.mutants --language cpp       cpp or triton
    python -m tests.mutants --only NAME          those whose name contains NAME, tried again

It works on a copy of the tree in build/mutants and keeps a build there, in which a mutant of a C++
file costs the compilation of that file for one instruction set. Its results stand in
build/mutants/results.jsonl; a result holds as long as the mutant, its file and its test files stay
as they are, so that a run which was interrupted goes on where it ended.
"""
