//! Who listens to a run: files and a terminal.
