"""The parts of benchmarks/mutants.py: changes to source, which tests run which line, one fork a mutant."""
