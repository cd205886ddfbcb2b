package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// folderLock is an advisory lock that several servers agree on: exclusive
// while a folder is made or removed, shared while it is used.
type folderLock struct{ file *os.File }

// lockPoll is how often a lock that another holds is tried.
const lockPoll = 100 * time.Millisecond

// lockFolder takes the lock at path, exclusively.
func lockFolder(ctx context.Context, path string) (*folderLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		l := &folderLock{f}
		if l.exclusive() || l.sharedNow() {
			// Whoever had it may have removed the file meanwhile.
			if l.current(path) {
				return l, nil
			}
		}
		l.leave()
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("another server holds %s: %w", path, ctx.Err())
		}
	}
}

// exclusive tries to make the lock exclusive; false if others share it.
func (l *folderLock) exclusive() bool {
	return unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// sharedNow tries to share the lock with others who use the folder.
func (l *folderLock) sharedNow() bool {
	return unix.Flock(int(l.file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}

// share makes the lock a shared one.
func (l *folderLock) share() error {
	err := unix.Flock(int(l.file.Fd()), unix.LOCK_SH)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(l.file.Fd()), unix.LOCK_SH)
	}
	return err
}

func (l *folderLock) current(path string) bool {
	own, err1 := l.file.Stat()
	there, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(own, there)
}

// leave gives the lock up.
func (l *folderLock) leave() { _ = l.file.Close() }

// remove gives an exclusive lock up and removes its file.
func (l *folderLock) remove() {
	_ = os.Remove(l.file.Name()) // the next one makes it again
	l.leave()
}
