package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresBin is where Debian's postgresql-15 has its programs.
const postgresBin = "/usr/lib/postgresql/15/bin"

// postgres is a server of its own, in a folder of its own, over a Unix socket. It runs
// as a user without rights if this process is root, since it refuses root.
type postgres struct {
	l      *lab
	dir    string // data and socket
	as     *syscall.Credential
	server *child
	starts int
	pool   *pgxpool.Pool
}

func startPostgres(ctx context.Context, l *lab, dir string) (keeper, error) {
	if _, err := os.Stat(filepath.Join(postgresBin, "initdb")); err != nil {
		return nil, fmt.Errorf("PostgreSQL 15 is missing (on Debian: apt-get install postgresql-15): %w", err)
	}
	p := &postgres{l: l, dir: dir}
	if os.Geteuid() == 0 {
		if err := p.another(); err != nil {
			return nil, err
		}
	}
	out, err := p.command(ctx, "initdb", "-D", filepath.Join(dir, "data"), "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	_, err = p.pool.Exec(ctx, `CREATE TABLE r (path text COLLATE "C" PRIMARY KEY, id uuid NOT NULL DEFAULT gen_random_uuid(), data bytea NOT NULL)`)
	return p, err
}

// another finds a user without rights and gives it the folder.
func (p *postgres) another() error {
	name := "postgres"
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	p.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(p.dir, int(uid), int(gid))
}

func (p *postgres) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(postgresBin, program), args...) //nolint:gosec // one of a few constants
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as}
	return cmd
}

// start starts the server and connects to it.
func (p *postgres) start(ctx context.Context) error {
	p.starts++
	var err error
	p.server, err = p.l.startAs(p.as, p.dir, fmt.Sprintf("postgres-%d", p.starts), filepath.Join(postgresBin, "postgres"), "-D", filepath.Join(p.dir, "data"), "-k", p.dir,
		"-c", "listen_addresses=", "-c", "max_connections=300", "-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "shared_buffers=512MB")
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig("host=" + p.dir + " user=bench dbname=postgres sslmode=disable")
	if err != nil {
		return err
	}
	config.MaxConns = int32(slices.Max(storeWriters()))
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	wait, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it does not answer after %v", startTimeout))
	defer cancel()
	err = until(wait, func() (bool, error) {
		select {
		case <-p.server.gone:
			return false, errors.New("it has ended")
		default:
		}
		return p.pool.Ping(wait) == nil, nil // until it listens
	})
	if err != nil {
		return p.server.failure(err)
	}
	return nil
}

func (p *postgres) fill(ctx context.Context, paths []string, data []byte) error {
	for some := range slices.Chunk(paths, storeBatch) {
		i := -1
		_, err := p.pool.CopyFrom(ctx, pgx.Identifier{"r"}, []string{"path", "data"}, pgx.CopyFromFunc(func() ([]any, error) {
			if i++; i == len(some) {
				return nil, nil
			}
			return []any{some[i], data}, nil
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) update(ctx context.Context, path string, data []byte) error {
	tag, err := p.pool.Exec(ctx, "UPDATE r SET data = $2 WHERE path = $1", path, data)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%s was not updated", path)
	}
	return err
}

func (p *postgres) read(ctx context.Context, path string) (int, error) {
	var data []byte
	err := p.pool.QueryRow(ctx, "SELECT data FROM r WHERE path = $1", path).Scan(&data)
	return len(data), err
}

func (p *postgres) list(ctx context.Context, path string) (n int, err error) {
	rows, err := p.pool.Query(ctx, "SELECT path, id FROM r WHERE path > $1 AND path < $2 ORDER BY path", path+"/", path+"0") // '0' follows '/'
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var at string
		var id [16]byte
		if err := rows.Scan(&at, &id); err != nil {
			return n, err
		}
		n++
	}
	return n, rows.Err()
}

// backup is a physical one, as the others are: the files and the log that they need.
func (p *postgres) backup(ctx context.Context, _ string) (n int64, err error) {
	to := filepath.Join(p.dir, "backup")
	out, err := p.command(ctx, "pg_basebackup", "-h", p.dir, "-U", "bench", "-D", to, "-Ft", "-X", "fetch", "--checkpoint=fast").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	err = filepath.WalkDir(to, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, errors.Join(err, os.RemoveAll(to))
}

func (p *postgres) reopen(ctx context.Context) (time.Duration, int64, error) {
	p.pool.Close()
	// In order, however long its last checkpoint takes, so that it has nothing to recover.
	if err := p.server.cmd.Process.Signal(os.Interrupt); err != nil {
		return 0, 0, err
	}
	select {
	case <-p.server.gone:
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
	began := time.Now()
	if err := p.start(ctx); err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	memory := memoryOf(p.server.pid())
	for _, pid := range descendants(p.server.pid()) {
		memory += memoryOf(pid)
	}
	return took, memory, nil
}

func (p *postgres) close() error {
	p.pool.Close()
	p.server.stop()
	return nil
}
