package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Writes the man pages",
		Long: `Writes a man page for each command into DIR, which is made if it is not there. They are
made of what --help says. SOURCE_DATE_EPOCH sets their date.`,
		Example: "  conduit-host man /usr/local/share/man/man1",
		Args:    takes(1, 1, "DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := writeManPages(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s in %s\n", count(n, "page"), args[0])
			return nil
		},
	}
}

func writeManPages(dir string) (n int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // man pages are for all to read
		return 0, usagef("the directory cannot be made: %v", err)
	}
	root := (&app{}).rootCommand() // its texts are changed
	asMarkdown(root)
	header := &doc.GenManHeader{Title: "CONDUIT-HOST", Section: "1", Source: "conduit-host " + buildVersion(), Manual: "Elemental Conduit"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return 0, usagef("the pages cannot be written: %v", err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "conduit-host*.1"))
	return len(pages), err
}

// asMarkdown makes Markdown of a command's texts, which is what cobra takes them for.
func asMarkdown(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true // it says when the page was made
	cmd.Short = markdown(cmd.Short)
	cmd.Long = markdown(cmd.Long)
	cmd.InitDefaultHelpFlag()
	mend := func(f *pflag.Flag) { f.Usage = markdownText(f.Usage) }
	cmd.LocalNonPersistentFlags().VisitAll(mend)
	if !cmd.HasParent() {
		cmd.PersistentFlags().VisitAll(mend)
	}
	for _, sub := range cmd.Commands() {
		asMarkdown(sub)
	}
}

// markdown keeps lines that are set in as they are, as in a table, and every sign that
// Markdown would take for its own.
func markdown(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		if setIn := strings.HasPrefix(line, "  "); setIn != inside {
			inside = setIn
			b.WriteString("\n")
		}
		if inside {
			b.WriteString("    " + line)
		} else {
			b.WriteString(markdownText(line))
		}
	}
	return b.String()
}

func markdownText(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `_`, `\_`, `<`, `\<`, "`", "\\`", `[`, `\[`).Replace(text)
}
