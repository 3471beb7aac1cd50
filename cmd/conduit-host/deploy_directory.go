package main

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/elemental-conduit/conduit/host"
	"github.com/elemental-conduit/conduit/internal/safepath"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// deployDirectory deploys a directory: all files in it, as they are.
func (a *app) deployDirectory(ctx context.Context, t target, c connection, path string, f *deployFlags) error {
	name, err := f.deploymentName(path)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return usagef("%s cannot be opened: %v", path, cause(err))
	}
	defer root.Close() //nolint:errcheck // read only
	files, size, err := filesOf(root)
	if err != nil {
		return err
	}
	start := &conduitv1.DeployStart{Name: name, Transient: f.transient, Replace: !f.fresh, Directory: true, Size: uint64(size), Files: uint32(len(files))}
	return a.upload(ctx, t, c, start, func(sent func(int), failed func(error)) iter.Seq[*conduitv1.DeployRequest] {
		return func(yield func(*conduitv1.DeployRequest) bool) {
			if !yield(&conduitv1.DeployRequest{Part: &conduitv1.DeployRequest_Start{Start: start}}) {
				return
			}
			for _, file := range files {
				if !sendFile(root, file, yield, sent, failed) {
					return
				}
			}
		}
	})
}

// sendFile yields the messages of one file of a directory, and reports whether there may
// be more.
func sendFile(root *os.Root, file *conduitv1.DeployFile, yield func(*conduitv1.DeployRequest) bool, sent func(int), failed func(error)) bool {
	cannot := func(err error) {
		failed(usagef("%s cannot be read: %v", filepath.Join(root.Name(), file.GetPath()), cause(err)))
	}
	from, err := root.Open(file.GetPath())
	if err != nil {
		cannot(err)
		return false
	}
	defer from.Close() //nolint:errcheck // read only
	return fileItems(yield, file, from, sent, cannot)
}

// filesOf returns all files below a directory, in the order of their names, and how many
// bytes they have together. The error says what of it cannot be deployed.
func filesOf(root *os.Root) (files []*conduitv1.DeployFile, size int64, err error) {
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		path := filepath.Join(root.Name(), name)
		switch {
		case err != nil:
			return usagef("%s cannot be read: %v", path, cause(err))
		case entry.IsDir():
			return nil
		case entry.Type()&fs.ModeSymlink != 0:
			return usagef("%s is a link, and a deployment is sent without any: put a copy of what it leads to in its place", path)
		case !entry.Type().IsRegular():
			return usagef("%s is neither a file nor a directory: a deployment has nothing else", path)
		}
		if err := safepath.Inside(name); err != nil {
			return usagef("%q cannot be deployed: its path in the directory %v", path, err)
		}
		if len(files) == host.MaxDeployFiles {
			return usagef("%s holds more than %d files, which is what a deployment may have", root.Name(), host.MaxDeployFiles)
		}
		f, err := root.Open(name)
		if err != nil {
			return usagef("%s cannot be read: %v", path, cause(err))
		}
		defer f.Close() //nolint:errcheck // read only
		info, err := f.Stat()
		if err != nil {
			return usagef("%s cannot be read: %v", path, cause(err))
		}
		if size+info.Size() > host.MaxDeploy {
			return usagef("the files of %s have more than %d bytes together, which is what a deployment may have", root.Name(), int64(host.MaxDeploy))
		}
		n, sum, err := digestOf(f)
		if err != nil {
			return usagef("%s cannot be read: %v", path, cause(err))
		}
		size += n
		files = append(files, &conduitv1.DeployFile{Path: name, Mode: uint32(info.Mode().Perm()), Size: uint64(n), Sha256: sum})
		return nil
	})
	if err == nil && len(files) == 0 {
		err = usagef("%s holds no file", root.Name())
	}
	return files, size, err
}

// cause takes the path off an error that is going to be said with one.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
