package main
import ( _ "github.com/twmb/franz-go/pkg/kgo"; _ "github.com/twmb/franz-go/pkg/kadm")
func main(){}
