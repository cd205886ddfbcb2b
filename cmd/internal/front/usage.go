package front

import "fmt"

// UsageError is wrong usage of a command that is found out only while the
// command runs.
type UsageError struct{ error }

// Unwrap is the error itself.
func (u *UsageError) Unwrap() error { return u.error }

// Usagef makes one.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...)}
}
