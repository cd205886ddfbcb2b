package printer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// table prints rows of cells, each column as wide as its widest so far, and on a
// terminal with colours in those.
type table struct {
	w      io.Writer
	colour bool
	heads  []string
	widths []int
	begun  bool
}

// newTable makes a table with these heads, in tabs.
func newTable(w io.Writer, heads string) *table {
	t := &table{heads: strings.Split(heads, "\t")}
	t.w, t.colour = command.Colours(w)
	t.widths = make([]int, len(t.heads))
	t.fit(t.heads)
	return t
}

// fit makes room for the cells of rows.
func (t *table) fit(rows ...[]string) {
	for _, row := range rows {
		for i, c := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c))
		}
	}
}

// fitted leaves columns out of a table, in the order of drop, until its lines have at
// most width characters; with 0 all stay.
func fitted(width int, heads []string, rows [][]string, drop []string) ([]string, [][]string) {
	rows = append([][]string{heads}, rows...)
	for _, name := range drop {
		all := 0
		for i := range rows[0] {
			widest := 0
			for _, row := range rows {
				widest = max(widest, utf8.RuneCountInString(row[i]))
			}
			all += widest + 2
		}
		if width == 0 || all-2 <= width {
			break
		}
		if i := slices.Index(rows[0], name); i >= 0 {
			for n, row := range rows {
				rows[n] = slices.Concat(row[:i], row[i+1:])
			}
		}
	}
	return rows[0], rows[1:]
}

// print prints rows, after the heads where nothing was printed yet.
func (t *table) print(rows ...[]string) error {
	t.fit(rows...)
	var b strings.Builder
	if !t.begun {
		t.begun = true
		t.row(&b, t.heads, func(string, string) string { return faint })
	}
	for _, row := range rows {
		t.row(&b, row, ink)
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

func (t *table) row(b *strings.Builder, cells []string, ink func(head, cell string) string) {
	var line strings.Builder
	for i, c := range cells {
		text := c
		if t.colour { // what else writes past those who make text harmless
			text = command.Harmless(c)
			if code := ink(strings.TrimSpace(t.heads[i]), strings.TrimSpace(c)); code != "" {
				text = "\x1b[" + code + "m" + text + "\x1b[0m"
			}
		}
		line.WriteString(text)
		if i < len(cells)-1 {
			line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(c)+2))
		}
	}
	fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
}

// What colours are on a terminal.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

// ink is the colour of a cell under a head; "" is none. No colour tells what the text
// does not.
func ink(head, cell string) string {
	word, _, _ := strings.Cut(cell, ":")
	word, _, _ = strings.Cut(word, " ")
	switch head {
	case "READY":
		return map[string]string{"True": green, "False": red, "Unknown": yellow}[cell]
	case "STATE", "STATUS":
		switch {
		case slices.Contains([]string{"Ready", "Serving"}, word):
			return green
		case slices.Contains([]string{"Pending", "Fetching", "Starting", "Draining", "Rollout"}, word), len(word) == 3 && word[0] == '4':
			return yellow
		case slices.Contains([]string{"Failed", "CrashLoopBackOff"}, word), len(word) == 3 && word[0] == '5':
			return red
		case slices.Contains([]string{"Asleep", "Stopped"}, word):
			return faint
		}
	case "RESTARTS", "LAST-FAILURE", "NOTE":
		if cell != "-" && cell != "0" {
			return yellow
		}
	}
	return ""
}
