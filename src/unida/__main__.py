from unida.cli import main

if __name__ == "__main__":
    main()
