//go:build !linux

package pluginlink

// fixtureThreads has nothing to show where no signal follows a thread.
func fixtureThreads() {}
