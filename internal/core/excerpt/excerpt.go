// Package excerpt shortens text that somebody else wrote, for errors, logs and
// statuses that repeat it.
package excerpt

import "strings"

// Of returns text, or where it is longer than most bytes its beginning with "…".
// No character is cut in two: what is not valid UTF-8 in the beginning is left
// out.
func Of(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
