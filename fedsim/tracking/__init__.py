"""Other people's tools that are told of a run while it is played: one file and one yaml each."""
