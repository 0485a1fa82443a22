"""A plug-in for fedsim: its parts are found by the yamls in conf/."""
