package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit/address"
)

// The files of a new plugin. TestScaffold of package integration builds and tests what
// is made of them.
//
//go:embed scaffold/*.tmpl
var scaffold embed.FS

type newOptions struct{ dir, module, conduit string }

func (a *app) pluginNew() *cobra.Command {
	var o newOptions
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Makes a new plugin, with its tests",
		Long: `Makes the directory of a new plugin in Go: an element NAME with two methods, tests that
run it in their process and as a binary, go.mod, Makefile and README.md. It writes into
a directory that is new or empty, and overwrites nothing.

Until there is a release to fetch, --conduit says where the source of Elemental Conduit
is: go.mod replaces the module by it.`,
		Example: "  conduit-host plugin new greeter --conduit ../conduit\n" +
			"  conduit-host plugin new greeter --dir /src/greeter --module example.org/me/greeter",
		Args: takes(1, 1, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error { return a.newPlugin(args[0], o) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "", "the directory to make (default ./NAME)")
	cmd.Flags().StringVar(&o.module, "module", "", "the path of the Go module (default example.org/NAME)")
	cmd.Flags().StringVar(&o.conduit, "conduit", "", "the directory with the source of Elemental Conduit, instead of a release of it")
	return cmd
}

var (
	pluginNames = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	modulePaths = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)
	releases    = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
)

const maxPluginName = 40 // characters: it is a part of names of files, addresses and types

// scaffoldValues are what the templates know.
type scaffoldValues struct{ Name, Service, Module, SDK, Release, Replace string }

func (a *app) newPlugin(name string, o newOptions) error {
	v, dir, err := scaffoldOf(name, o)
	if err != nil {
		return err
	}
	files, err := v.files()
	if err != nil {
		return err
	}
	if err := writeNew(dir, files); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "made %s; next:\n", dir)
	// What to type goes to standard output, so that a script may run it.
	_, err = fmt.Fprintf(a.stdout, "cd %s\ngo mod tidy\ngo test ./...\nconduit-host plugin dev .\n", shellWord(dir))
	return err
}

func scaffoldOf(name string, o newOptions) (v scaffoldValues, dir string, err error) {
	switch {
	case !pluginNames.MatchString(name) || len(name) > maxPluginName:
		return v, "", usagef("%q cannot be the name of a plugin: use at most %d small letters, digits and single dashes, a letter first, as in my-greeter", name, maxPluginName)
	case name == address.BuiltinDeployment:
		return v, "", usagef("%s is the name of the instance's own element; choose another", name)
	}
	dir = o.dir
	if dir == "" {
		dir = name
	}
	v = scaffoldValues{Name: name, Service: "example." + camel(name), Module: o.module, SDK: sdkModule, Release: buildVersion()}
	if v.Module == "" {
		v.Module = "example.org/" + name
	}
	if !modulePaths.MatchString(v.Module) || v.Module == sdkModule || strings.HasPrefix(v.Module, sdkModule+"/") {
		return v, "", usagef("--module: %q cannot be the path of a module of yours; write, for example, example.org/%s", v.Module, name)
	}
	if o.conduit != "" {
		v.Release = "v0.0.0"
		v.Replace, err = replacement(o.conduit, dir)
		return v, dir, err
	}
	if !releases.MatchString(v.Release) {
		return v, "", usagef("this conduit-host is not a release (version %s), so go.mod can name none; say where the source of Elemental Conduit is with --conduit DIR", v.Release)
	}
	return v, dir, nil
}

// replacement is what a go.mod in dir calls the source at conduit: relative if it was
// given so, so that both may be moved together.
func replacement(conduit, dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(conduit, "go.mod"))
	if err != nil || !bytes.HasPrefix(text, []byte("module "+sdkModule+"\n")) {
		return "", usagef("--conduit: %s is not the source of Elemental Conduit: it has no go.mod of the module %s", conduit, sdkModule)
	}
	if filepath.IsAbs(conduit) {
		return quoteMod(filepath.Clean(conduit)), nil
	}
	from, err1 := filepath.Abs(dir)
	to, err2 := filepath.Abs(conduit)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(from, to)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(rel, ".") {
		rel = "./" + rel // else it would be a module's path
	}
	return quoteMod(rel), nil
}

// quoteMod is a path as go.mod has it.
func quoteMod(path string) string {
	if strings.ContainsAny(path, " \t\"'`()[]{},") {
		return fmt.Sprintf("%q", path)
	}
	return path
}

// camel makes MyGreeter of my-greeter.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// files gives the files of the scaffold by their names.
func (v scaffoldValues) files() (map[string][]byte, error) {
	all, err := template.ParseFS(scaffold, "scaffold/*.tmpl")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, t := range all.Templates() {
		var b bytes.Buffer
		if err := t.Execute(&b, v); err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(t.Name(), ".tmpl")
		if name == "gitignore" {
			name = ".gitignore"
		}
		files[name] = b.Bytes()
	}
	return files, nil
}

// writeNew writes files into a directory that is new or empty.
func writeNew(dir string, files map[string][]byte) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return usagef("%s cannot be made: %v; name another directory with --dir", dir, errors.Unwrap(err))
	case len(entries) > 0:
		return usagef("%s is there and not empty; nothing is overwritten: name another directory with --dir", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // source is for others to read, too
		return usagef("%s cannot be made: %v; name another directory with --dir", dir, errors.Unwrap(err))
	}
	for name, data := range files {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // as above
		if err != nil {
			return err
		}
		_, err = io.Copy(f, bytes.NewReader(data))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// shellWord is a word as a shell reads it.
func shellWord(s string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./~+-]+$`).MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
