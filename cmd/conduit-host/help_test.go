package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command has an example in its help, and every example is a command line
// that is understood; so is what docs/cli.md shows without running it.
func TestExamples(t *testing.T) {
	a := &app{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "completion" || cmd.Name() == "help" {
			return // cobra's own
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			understood(t, cmd.CommandPath(), strings.TrimSpace(line))
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(a.rootCommand())

	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	block := ""
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```"):
			block = strings.TrimSpace(strings.TrimPrefix(line, "```"))
		case block == "sh":
			understood(t, "docs/cli.md", strings.TrimSpace(line))
		}
	}
}

// understood parses a command line as the program would, and runs nothing.
func understood(t *testing.T, where, line string) {
	t.Helper()
	words := shellWords(line)
	if len(words) == 0 || words[0] != "conduit-host" {
		t.Errorf("%s: %q is not a command line of conduit-host", where, line)
		return
	}
	root := (&app{}).rootCommand()
	cmd, args, err := root.Find(negativesLast(root, words[1:]))
	if err == nil && !cmd.HasSubCommands() {
		if err = cmd.ParseFlags(args); err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
	}
	if err != nil || cmd == root {
		t.Errorf("%s: %q: %v", where, line, err)
	}
}

// shellWords splits a line as a shell does; of its syntax it knows single quotes.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, some := false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, some = !quoted, true
		case r == ' ' && !quoted:
			if some {
				words = append(words, word.String())
				word.Reset()
				some = false
			}
		default:
			word.WriteRune(r)
			some = true
		}
	}
	if some {
		words = append(words, word.String())
	}
	return words
}

// What a plugin that is run by hand says to type is something that works.
func TestPluginsAdvice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	out, _ := exec.CommandContext(ctx, echoBinary).CombinedOutput() // it exits 64
	served := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		flags, ok := strings.CutPrefix(line, "conduit-host serve ")
		if !ok {
			continue
		}
		served = true
		if status, _, stderr := inProcess(t, nil, "", append([]string{"config", "check"}, strings.Fields(flags)...)...); status != exitDone {
			t.Errorf("%s: exit %d, %s", line, status, stderr)
		}
	}
	if !served {
		t.Errorf("it does not say how to serve it:\n%s", out)
	}
}

// Only commands that work are there: the contract's others come with their issues.
func TestCommands(t *testing.T) {
	var names []string
	for _, cmd := range (&app{}).rootCommand().Commands() {
		names = append(names, cmd.Name())
	}
	if got, want := strings.Join(names, " "), "bench call completion config cordon deploy describe disable doctor drain enable explain help id logs ls man persist plugin restart rollback serve session tls uncordon undeploy user version"; got != want {
		t.Errorf("commands: %s, want %s", got, want)
	}
}
