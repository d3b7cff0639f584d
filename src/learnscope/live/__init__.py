"""The live page: a small server that shows run folders while they grow. It reads them and writes nothing."""
