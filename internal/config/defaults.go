package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

// Machine is what the computed defaults depend on. [ThisMachine] fills it; tests
// write their own.
type Machine struct {
	HostName string
	// RuntimeDir is $XDG_RUNTIME_DIR if it can be used, else empty.
	RuntimeDir string
	// Terminal says that log lines go to a terminal.
	Terminal bool
	// IsDir reports whether a path is a directory; nil: none is.
	IsDir func(path string) bool
}

// ThisMachine describes the machine that the program runs on.
func ThisMachine(terminal bool) Machine {
	m := Machine{Terminal: terminal, IsDir: isDir}
	m.HostName, _ = os.Hostname() // without one the name must be given, and its check says so
	// After su the variable may still name another user's directory.
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isDir(dir) && owned(dir) {
		m.RuntimeDir = dir
	}
	return m
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func defaultName(c *Config, m Machine) string {
	if c.String("mode") == "external" && m.HostName != "" {
		return m.HostName + "-ext"
	}
	return m.HostName
}

func defaultRunDir(c *Config, m Machine) string {
	data := c.String("data_dir")
	if m.RuntimeDir == "" {
		return filepath.Join(data, "run")
	}
	// Two data directories are two installations, and may use the same names.
	abs, err := filepath.Abs(data)
	if err != nil {
		abs = data
	}
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(m.RuntimeDir, "conduit", hex.EncodeToString(sum[:4]))
}

// PrivateDir is where the instance keeps what no other one may touch.
func (c *Config) PrivateDir() string {
	return filepath.Join(c.String("data_dir"), "instances", c.String("name"))
}

// IDFile is the path of the file that holds the InstanceID.
func (c *Config) IDFile() string {
	file := c.String("instance.id_file")
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(c.PrivateDir(), file)
}

// Socket is the path of the instance's management socket.
func (c *Config) Socket() string {
	return filepath.Join(c.String("run_dir"), c.String("name")+".sock")
}

func defaultIDFile(*Config, Machine) string { return "instance-id.txt" }

func defaultDrainDelay(c *Config, _ Machine) string {
	if c.String("mode") == "external" {
		return "5s"
	}
	return "0s"
}

func defaultDeployments(_ *Config, m Machine) string {
	if m.IsDir != nil && m.IsDir("./deployments") {
		return "./deployments"
	}
	return ""
}

func defaultStore(c *Config, _ Machine) string {
	return "bolt:" + filepath.Join(c.String("data_dir"), "auth.db")
}

// StorePath is the path of the file that auth.store names, if it is not [Config.InEtcd].
func (c *Config) StorePath() string { return strings.TrimPrefix(c.String("auth.store"), "bolt:") }

func defaultLogFormat(_ *Config, m Machine) string {
	if m.Terminal {
		return "text"
	}
	return "json"
}

// ServesCluster reports whether the instance's mode has /cluster/v1.
func (c *Config) ServesCluster() bool { return c.String("mode") != "external" }

// ServesGateway reports whether the instance's mode has the HTTP gateway.
func (c *Config) ServesGateway() bool { return c.String("mode") != "worker" }

// KeepsID reports whether the instance's mode has an InstanceID that outlives it.
func (c *Config) KeepsID() bool { return c.String("mode") != "external" }
