package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Trusted refuses a folder in which another user could put files. Every folder
// on the way to it counts, since whoever may write to one can put another in the
// place of what is below. What is not there yet is no concern. A shared folder,
// such as a volume in a pod, may be root's and its group's.
func Trusted(path string, shared bool) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ways := []string{real}
	if real != path {
		ways = append(ways, path) // its links must not be another's
	}
	for _, way := range ways {
		for at := way; ; at = filepath.Dir(at) {
			info, err := os.Lstat(at)
			if err != nil {
				return err
			}
			if why := untrusted(info, at == real, shared); why != "" {
				return fmt.Errorf("%s %s: another user could put files into %s", at, why, path)
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return nil
}

// untrusted is what is wrong with one folder or link, in words with what to do;
// "" when nothing is. The folder itself has to be ours; those above may be
// root's.
func untrusted(info fs.FileInfo, itself, shared bool) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	uid, mode := int(st.Uid), info.Mode()
	if me := os.Geteuid(); uid != me && (itself && !shared || uid != 0) {
		return fmt.Sprintf("belongs to user %d, and you are user %d (chown it)", uid, me)
	}
	if mode&fs.ModeSymlink != 0 {
		return "" // a link has no mode of its own
	}
	// In a sticky folder, such as /tmp, nobody can replace what is another's.
	if mode&fs.ModeSticky != 0 && !itself {
		return ""
	}
	var who []string
	if mode.Perm()&0o002 != 0 {
		who = append(who, "anybody")
	}
	// A group with the number of its user is that user's own by convention.
	if mode.Perm()&0o020 != 0 && st.Gid != st.Uid && !shared {
		who = append(who, fmt.Sprintf("group %d", st.Gid))
	}
	if len(who) == 0 {
		return ""
	}
	return "may be written by " + strings.Join(who, " and ") + " (chmod go-w it)"
}
