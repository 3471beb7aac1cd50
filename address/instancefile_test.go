package address

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestInstanceIDFileIsCreatedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a", "b", "instance-id.txt")
	first, err := LoadOrCreateInstanceID(file)
	if err != nil || first.IsZero() {
		t.Fatalf("create: %v, %v", first, err)
	}
	second, err := LoadOrCreateInstanceID(file)
	if err != nil || second != first {
		t.Errorf("load: %v, %v; want %v", second, err, first)
	}
	content, err := os.ReadFile(file)
	if err != nil || string(content) != first.String()+"\n" {
		t.Errorf("content %q, %v; want the id and a newline", content, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	testOnlyFile(t, file)
}

// testOnlyFile checks that no temporary file is left beside the file.
func testOnlyFile(t *testing.T, file string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v; want one file", entries, err)
	}
}

func TestInstanceIDFileIsReadLeniently(t *testing.T) {
	for name, content := range map[string]string{
		"no newline": goldenInstance,
		"crlf":       goldenInstance + "\r\n",
		"upper case": strings.ToUpper(goldenInstance) + "\n",
		"more lines": goldenInstance + "\nkept by hand\n",
		"spaces":     " " + goldenInstance + " \n",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "id")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if id, err := LoadOrCreateInstanceID(file); err != nil || id.String() != goldenInstance {
				t.Errorf("got %v, %v; want %s", id, err, goldenInstance)
			}
		})
	}
}

// Deviation: the original makes a new id.
func TestDamagedInstanceIDFileIsRefused(t *testing.T) {
	for name, content := range map[string]string{
		"empty":         "",
		"blank line":    "\n" + goldenInstance + "\n",
		"cut short":     goldenInstance[:20],
		"a deployment":  goldenDeployment,
		"zeros":         strings.Repeat("\x00", 37),
		"nil uuid":      "0100" + strings.Repeat("0", 32),
		"binary":        "\xff\xfe\x00",
		"one long line": strings.Repeat("0", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "id")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadOrCreateInstanceID(file)
			testError(t, "LoadOrCreateInstanceID", name, err, KindInstanceFile, "restore the file from a backup, or run `conduit-host id reset`")
			if e, ok := errors.AsType[*Error](errors.Unwrap(err)); !ok || e.Kind != KindInstanceID {
				t.Errorf("the cause of %v is not an *Error of an instance id", err)
			}
			if !strings.Contains(err.Error(), file) || len(err.Error()) > 1000 {
				t.Errorf("the error does not name the file, or is too long: %v", err)
			}
			if after, err := os.ReadFile(file); err != nil || string(after) != content {
				t.Errorf("the damaged file was changed: %v", err)
			}
			testOnlyFile(t, file)
		})
	}
}

func TestInstanceIDFileErrors(t *testing.T) {
	dir := t.TempDir()
	blocker := filepath.Join(dir, "blocker")
	if err := os.WriteFile(blocker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "gone"), dangling); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"a folder":           dir,
		"below a file":       filepath.Join(blocker, "id"),
		"no name":            "",
		"a dangling symlink": dangling,
	} {
		id, err := LoadOrCreateInstanceID(file)
		testError(t, "LoadOrCreateInstanceID", name, err, KindInstanceFile, "it ")
		if errors.Unwrap(err) == nil || !id.IsZero() {
			t.Errorf("%s: got %v and the cause %v", name, id, errors.Unwrap(err))
		}
	}
}

func TestInstanceIDFileHasOneWinner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id")
	ids := make([]InstanceID, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = LoadOrCreateInstanceID(file); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one got %v, another %v", ids[0], id)
		}
	}
	testOnlyFile(t, file)
}

func TestStoreInstanceID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := RandomInstanceID()
	if err := StoreInstanceID(file, want); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadOrCreateInstanceID(file); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	testOnlyFile(t, file)
	err := StoreInstanceID(filepath.Dir(file), want)
	testError(t, "StoreInstanceID", "a folder", err, KindInstanceFile, "cannot be put in place")
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v does not keep its cause", err)
	}
	testOnlyFile(t, file)
}
