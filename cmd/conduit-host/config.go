package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/manifest"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Checks and explains the configuration that serve would have",
		Example: "  conduit-host config check --config conduit.yaml\n  conduit-host config explain drain.timeout",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.configCheck(), a.configExplain())
	return cmd
}

func (a *app) configCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Says what is wrong with the configuration",
		Long:    "Says what is wrong with the configuration: it takes what serve takes, starts nothing, and exits 2 if\nserve would. Of the machine it looks at the deployments directory and the attributes file alone, and at\neach deployment.yaml in it, which serve would refuse alone: what is wrong with one exits 2, too.",
		Example: "  conduit-host config check --config conduit.yaml",
		Args:    takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			c, err := a.loadConfig()
			if err := withAttributes(c, withDeployments(c, err)); err != nil {
				return err
			}
			v := struct {
				OK       bool     `json:"ok"`
				Warnings []string `json:"warnings,omitempty"`
			}{true, c.Warnings}
			return a.print(v, func(w io.Writer) { fmt.Fprintln(w, "ok") })
		},
	}
	a.addKeyFlags(cmd, everyKey)
	return cmd
}

// withDeployments adds to the problems of a configuration that the deployments
// directory, which serve looks at first, is not there, and what is wrong with the
// manifests in it.
func withDeployments(c *config.Config, err error) error {
	const key = "host.deployments"
	dir := c.String(key)
	if dir == "" {
		return err
	}
	var found []config.Problem
	why := checkDeployments(dir)
	if why == nil {
		var manifests []manifest.Problem
		manifests, why = manifest.Check(dir, c.Bool("host.allow_unsafe"))
		for _, p := range manifests {
			found = append(found, config.Problem{Key: p.Key, Where: p.Where(), Message: p.Message})
		}
	}
	if why != nil {
		found = append(found, problemOf(c, key, why))
	}
	return withProblems(err, found...)
}

// withAttributes adds that the attributes file cannot be used.
func withAttributes(c *config.Config, err error) error {
	const key = "host.attributes_file"
	if c.String(key) == "" {
		return err
	}
	if _, why := instanceAttributes(c); why != nil {
		return withProblems(err, problemOf(c, key, why))
	}
	return err
}

func problemOf(c *config.Config, key string, why error) config.Problem {
	message := strings.TrimPrefix(conduit.AsError(why, conduit.NotSent).Message, key+": ")
	return config.Problem{Key: key, Where: c.Value(key).Where, Message: message}
}

func withProblems(err error, found ...config.Problem) error {
	if len(found) == 0 {
		return err
	}
	e, ok := errors.AsType[*config.Error](err)
	if !ok {
		e = &config.Error{}
	}
	return &config.Error{Problems: slices.Concat(e.Problems, found)}
}

// explanation is one value and where it came from.
type explanation struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
	Where  string `json:"where,omitempty"`
	Doc    string `json:"doc"`
	Reload bool   `json:"reload,omitempty"` // a new value counts on SIGHUP
	Later  bool   `json:"later,omitempty"`
}

// meaning is Doc as the table shows it.
func (e explanation) meaning() string {
	doc := strings.ReplaceAll(e.Doc, "`", "")
	if e.Reload {
		doc += "; read again when the file changes, and on SIGHUP"
	}
	return doc
}

func (a *app) configExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [KEY...]",
		Short: "Shows each value, where it came from, and what it means",
		Long: "Shows each value, or those of the keys named, with the place that it came from and what it means. A value that cannot be\n" +
			"understood is left out and reported; then the exit status is 2.",
		Example: "  conduit-host config explain --config conduit.yaml\n  conduit-host config explain drain.timeout cluster.listen -o json",
		Args:    cobra.ArbitraryArgs,
		RunE:    func(_ *cobra.Command, keys []string) error { return a.explainConfig(keys) },
	}
	a.addKeyFlags(cmd, everyKey)
	return cmd
}

func (a *app) explainConfig(wanted []string) error {
	for _, name := range wanted {
		if !isKey(name) {
			return usagef("%q is not a key%s", name, config.SuggestKey(name))
		}
	}
	c, problems := a.loadConfig()
	if len(wanted) > 0 {
		problems = only(problems, wanted...)
	}
	rows := []explanation{}
	for _, v := range c.Values() {
		if len(wanted) > 0 && !slices.Contains(wanted, v.Key.Name) {
			continue
		}
		rows = append(rows, explanation{Key: v.Key.Name, Value: v.Text, Source: v.Layer.String(), Where: v.Where, Doc: v.Key.Doc, Reload: v.Key.Reloadable, Later: v.Key.Later})
	}
	err := a.print(rows, func(w io.Writer) {
		fmt.Fprintln(w, "KEY\tVALUE\tSOURCE\tMEANING")
		for _, r := range rows {
			source := r.Source
			if r.Where != "" {
				source += " " + r.Where
			}
			if r.Later {
				source += " (not in this version)"
			}
			value := r.Value
			if value == "" {
				value = "-"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Key, printable(value), printable(source), r.meaning())
		}
	})
	return errors.Join(err, problems)
}

func isKey(name string) bool {
	return slices.ContainsFunc(config.Keys(), func(k config.Key) bool { return k.Name == name })
}

// only drops the problems of keys that a command has no use for.
func only(err error, keys ...string) error {
	e, ok := errors.AsType[*config.Error](err)
	if !ok {
		return err
	}
	var left []config.Problem
	for _, p := range e.Problems {
		if p.Key == "" || slices.Contains(keys, p.Key) {
			left = append(left, p)
		}
	}
	if left == nil {
		return nil
	}
	return &config.Error{Problems: left}
}
