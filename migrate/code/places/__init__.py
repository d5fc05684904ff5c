"""The kinds of places that old programs have, one file each; each looks at a node and says what becomes of it."""
