package boltstore

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(child(what, os.Getenv(childPathEnv)))
	}
	goleak.VerifyTestMain(m)
}
