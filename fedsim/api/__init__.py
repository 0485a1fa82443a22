"""The way in from Python: what `import fedsim` offers beside types and interfaces."""
