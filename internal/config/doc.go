// Package config owns the configuration of an instance: the one table of keys
// ([Keys]), how a value is written ([Kind]), and the four layers that a value
// may come from: defaults, the file, the environment, flags. The later layer
// wins, and every value remembers the one that it came from.
//
// A value is text wherever it stands, and one parser reads it, so the file, the
// environment and a flag can not disagree about what 30 means.
//
// To add a key, add it to table.go: its flag, its environment variable, its
// place in the file, the suggestions for mistyped names, `config explain` and
// docs/configuration.md (go test ./internal/config -update) follow.
//
// The package opens no socket and makes no directory: it says what was asked for, not whether the machine can give it.
package config
