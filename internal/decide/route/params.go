package route

import "strings"

// param is the first value of a query's parameter; ok is false when the query
// has none of the name. Parts that cannot be read are passed over.
func param(query, name string) (value string, ok bool) {
	for query != "" {
		var part string
		part, query, _ = strings.Cut(query, "&")
		if strings.Contains(part, ";") {
			continue
		}
		key, v, _ := strings.Cut(part, "=")
		if key, fine := unescape(key); !fine || key != name || part == "" {
			continue
		}
		if v, fine := unescape(v); fine {
			return v, true
		}
	}
	return "", false
}

// unescape reads + and %XX.
func unescape(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '+':
			out = append(out, ' ')
		case '%':
			if i+2 >= len(s) {
				return "", false
			}
			hi, lo := hex(s[i+1]), hex(s[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			out = append(out, byte(hi<<4|lo))
			i += 2
		default:
			out = append(out, c)
		}
	}
	return string(out), true
}

func hex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
