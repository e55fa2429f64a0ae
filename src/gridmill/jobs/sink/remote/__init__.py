"""Files elsewhere: found out about cheaply, fetched when they are new, checked, and resumed when cut off."""
