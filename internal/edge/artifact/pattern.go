package artifact

import (
	"regexp"
	"sync"
)

// pattern compiles an expression when it is first used: a replica, which links
// this package and uses none, does not pay for them.
func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
