package sandbox

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the program that is confined: with this variable it does what that
// lists, and says how it went.
const probeVar = "SANDBOX_PROBE"

func TestMain(m *testing.M) {
	Enter() // before all else, as main does
	if list := os.Getenv(probeVar); list != "" {
		probe(list)
		os.Exit(0)
	}
	// What this process was itself started with is no matter of the sandbox's.
	if err := closeOnExec(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
