package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// protocol is the sub-protocol of /cluster/v1 that this build speaks.
const protocol = "conduit.v1"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Says what this build is",
		Example: "  conduit-host version\n  conduit-host version -o json",
		Args:    takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Protocol string `json:"protocol"`
				Go       string `json:"go"`
				OS       string `json:"os"`
				Arch     string `json:"arch"`
			}{buildVersion(), protocol, runtime.Version(), runtime.GOOS, runtime.GOARCH}
			return a.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "conduit-host %s (protocol %s, %s, %s/%s)\n", v.Version, v.Protocol, v.Go, v.OS, v.Arch)
			})
		},
	}
}

// buildVersion is what the Makefile said, or what go install knows.
func buildVersion() string {
	if version != "dev" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return version
}
