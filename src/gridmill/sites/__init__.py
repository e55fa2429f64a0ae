"""The sites: each kind of site is one module or package, and no kind imports another kind."""
