package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// smallDisk is the size of the disk that is filled in bytes.
const smallDisk = 24 << 20

// childFillsSmallDisk is STO-07 on a disk of its own: it runs in a mount namespace of its
// own, in which the folder of the file becomes a small tmpfs.
func childFillsSmallDisk(ctx context.Context, file string) error {
	dir := filepath.Dir(file)
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", smallDisk)); err != nil {
		return err
	}
	s, err := Open(ctx, Options{File: file, Node: testNode})
	if err != nil {
		return err
	}
	save := func(name string) error {
		return s.Update(ctx, paths("/"), func(tx *WriteTx) error { return tx.Save(path(name), newID(), make([]byte, 1<<20)) })
	}
	n := 0
	for err == nil && n < 100 {
		if err = save(fmt.Sprintf("/k/%03d", n)); err == nil {
			n++
		}
	}
	if KindOf(err) != KindFull || n == 0 {
		return fmt.Errorf("after %d it is %w, want a full store", n, err)
	}
	whole := func() error {
		found := 0
		err := s.View(ctx, paths("/"), func(tx *ReadTx) error {
			for l, err := range tx.List(path("/k/*")) {
				if err != nil {
					return err
				}
				if data, err := tx.Load(l.ID); err != nil || len(data) != 1<<20 {
					return fmt.Errorf("%s has %d bytes: %w", l.Path, len(data), err)
				}
				found++
			}
			return nil
		})
		if err == nil && found != n {
			err = fmt.Errorf("%d of %d are there", found, n)
		}
		return errors.Join(err, s.Check(ctx))
	}
	if err := whole(); err != nil {
		return fmt.Errorf("on the full disk: %w", err)
	}
	// There is no room for a backup beside it either, and what was begun of one is removed.
	copied := filepath.Join(dir, "copy")
	if _, err := s.BackupFile(ctx, copied); KindOf(err) != KindFull {
		return fmt.Errorf("a backup on the full disk: %w", err)
	}
	// Contents that are larger than the disk fail in the middle and leave nothing, and what
	// they had written is room again.
	err = s.Update(ctx, paths("/"), func(tx *WriteTx) error {
		w, err := tx.Create(path("/stream"), newID())
		for err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
		return err
	})
	if KindOf(err) != KindFull {
		return fmt.Errorf("contents larger than the disk: %w", err)
	}
	if err := s.sweeper.wait(ctx); err != nil {
		return err
	}
	if err := whole(); err != nil {
		return fmt.Errorf("behind contents larger than the disk: %w", err)
	}
	// What is removed makes room, on a disk that is full, without being opened anew. A
	// removal writes pages itself; those that the last failures left are enough for it.
	err = s.Update(ctx, paths("/"), func(tx *WriteTx) error {
		_, err := tx.RemoveMatching(path("/k/*"), 2)
		return err
	})
	if err != nil {
		return fmt.Errorf("removing on the full disk: %w", err)
	}
	n -= 2
	for i := range 2 {
		if err := save(fmt.Sprintf("/k/new%d", i)); err != nil {
			return fmt.Errorf("with room again: %w", err)
		}
		n++
	}
	if err := whole(); err != nil {
		return err
	}
	// A disk that becomes read-only refuses writers, and readers go on.
	if err := s.Close(); err != nil {
		return err
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return err
	}
	if _, err := Open(ctx, Options{File: file, Node: testNode}); KindOf(err) != KindReadOnly {
		return fmt.Errorf("on a read-only disk: %w", err)
	}
	if _, err := Open(ctx, Options{File: filepath.Join(dir, "new"), Node: testNode}); KindOf(err) != KindReadOnly {
		return fmt.Errorf("a new one on a read-only disk: %w", err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""); err != nil {
		return err
	}
	if s, err = Open(ctx, Options{File: file, Node: testNode}); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		return fmt.Errorf("left over: %v, %w", entries, err)
	}
	return errors.Join(whole(), s.Close())
}
