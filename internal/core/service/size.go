package service

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseParameters reads a parameter count: a plain integer or a number with
// K, M, B or T in either case ("9B", "1.5b", "235000000").
func ParseParameters(s string) (int64, error) {
	t := strings.TrimSpace(s)
	if t == "" {
		return 0, fmt.Errorf("empty parameter count: write a number such as 7B or 350M")
	}
	mult := 1.0
	switch t[len(t)-1] {
	case 'k', 'K':
		mult = 1e3
	case 'm', 'M':
		mult = 1e6
	case 'b', 'B':
		mult = 1e9
	case 't', 'T':
		mult = 1e12
	}
	num := t
	if mult != 1 {
		num = strings.TrimSpace(t[:len(t)-1])
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*mult > 1e18 {
		return 0, fmt.Errorf("%q is not a parameter count: write a number such as 7B or 350M", s)
	}
	return int64(math.Round(f * mult)), nil
}

// FormatParameters prints a count the way people write it ("7.24B").
func FormatParameters(n int64) string {
	for _, u := range []struct {
		div    float64
		suffix string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if float64(n) >= u.div {
			return strconv.FormatFloat(math.Round(float64(n)/u.div*100)/100, 'f', -1, 64) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
